"""What every part of the library may use: argument checks, atomic files, ranks, random streams, devices."""
