"""Other hosts, reached over SSH: their drivers, files, images, devices and control links."""
