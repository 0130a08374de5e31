//! onearm netcfg.
