"""The gate: libvirt's hook asks here whether a guest may start, and tells here that one has gone."""
