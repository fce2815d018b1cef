"""Running things: the controller, the training loop, engines, data, report and command line."""
