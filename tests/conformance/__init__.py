"""What every driver must keep, as code: the same checks for every registered driver.

`obligations` watches what a driver does, `host` feeds a driver and has it watched, `steps` reads and
plays recorded inputs, `live` runs the driver's real agent.
"""
