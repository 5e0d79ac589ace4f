"""Problems and where they come from."""
