"""Entry point, run by path: `python -I -S __main__.py`. Kept tiny, the rest comes from bytecode."""

import sys
from importlib import import_module
from os.path import abspath, dirname

if __name__ == "__main__":
    here = dirname(abspath(__file__))
    # Isolated mode has no script folder on the path; last, so that nothing in it hides the library.
    sys.path.append(dirname(here))
    sys.exit(import_module("agent.loop").main(sys.argv[1:]))
