"""What the registry keeps, as frozen data classes. One file per subject; fields have defaults where
rows of earlier releases lack them."""
