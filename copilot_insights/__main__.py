"""Where `copilot-insights` begins: Ctrl-C ends it without a word, also while it is imported."""

import os
import signal
import sys


def main() -> None:
    """The command line; 130 after Ctrl-C."""
    try:
        # an exception in the middle of an import may be printed or lost, whoever catches it; and
        # who started us may have had Ctrl-C ignored
        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ours:
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        from copilot_insights import cli  # noqa: PLC0415

        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
