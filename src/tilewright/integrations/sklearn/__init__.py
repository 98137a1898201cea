"""Estimators of scikit-learn, compiled."""
