from opsctl.cli.start import main

main()
