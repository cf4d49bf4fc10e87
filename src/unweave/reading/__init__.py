"""Models and data, looked at and left as they were: what loaders yield and models return, and small sets held whole."""
