"""What is known about images before they are measured: denoisers and energies, found by name or file."""
