"""The engine `openrlhf`: the controller as a service, and the parts that run inside OpenRLHF.

    spec -> argv, script           argv.py, flags.py, slots_file.py, script.py
    the controller's own process   serve.py, service.py (HTTP), session.py, frozen.py (the frozen policy)
    inside OpenRLHF's processes    train_ppo.py, worker.py, executor.py, client.py

The last row runs in OpenRLHF's environment, which has other pins: it imports nothing of this package but
`wire.py` and each other.
"""
