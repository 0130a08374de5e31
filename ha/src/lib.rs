//! onearm ha.
