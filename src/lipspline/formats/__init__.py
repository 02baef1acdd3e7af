"""The only place that opens files: images, MNIST, MRI and CT data, from a folder the user names."""
