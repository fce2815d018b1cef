"""The harness evolver: retrieve, attribute, propose, critic, revise, as a LangGraph state machine."""
