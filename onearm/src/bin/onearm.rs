//! onearm.
fn main() {}
