"""A loaded export: features, tables, dense program and cuts."""
