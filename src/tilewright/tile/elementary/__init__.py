"""Elementary functions as value trees, one file a family. In: values. Out: values. Not its business: instructions."""
