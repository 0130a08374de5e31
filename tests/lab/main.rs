//! onearm-lab.
fn main() {}
