"""The command line. `main` builds only the command that was asked for, so that `--help` stays quick."""
