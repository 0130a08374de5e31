//! onearmd.
fn main() {}
