"""Boosted trees of XGBoost and LightGBM, compiled: each library's own dump, read into one form of trees."""
