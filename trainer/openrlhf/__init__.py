"""The engine `openrlhf`: the controller as a service, and the parts that run inside OpenRLHF.

    spec -> argv, script           argv.py, flags.py, slots_file.py, script.py
    the controller's own process   serve.py, service.py (HTTP), session.py, journal.py
    the frozen policy              frozen.py, and its vLLM's process: server.py, leash.py
    in OpenRLHF's environment      versions.py, cluster.py
    inside OpenRLHF's processes    train_ppo.py, worker.py, executor.py, client.py

OpenRLHF's environment has other pins: the last two rows import nothing of this package but `wire.py` and
each other.
"""
