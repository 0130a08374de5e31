//! onearm dataplane.
