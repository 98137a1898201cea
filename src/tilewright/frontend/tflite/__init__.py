"""TensorFlow Lite and LiteRT models: ``importer`` reads files, ``table`` has every builtin op of the schema."""
