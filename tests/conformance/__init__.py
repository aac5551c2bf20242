"""What every driver must keep, as code: the same checks for every registered driver.

Whoever writes a driver registers it (entry point group `sessiond.drivers`), installs it into the
environment of this checkout and runs `pytest tests/conformance`: all that is registered is checked. What
its agent said can be kept below tests/golden/DRIVER/ (see tests/golden/compare.py); recorded lines are
then played damaged, shuffled and over restores as well.

`obligations` watches what a driver does, `host` feeds a driver and has it watched, `steps` reads and
plays recorded inputs, `live` runs a driver's real agent, `drivers` finds what is registered.
"""
