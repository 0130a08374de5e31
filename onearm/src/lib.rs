//! onearm onearm.
