"""What plans do to scans over layers."""
