//! The packet logic over ordinary memory: every case of `cases`, then what only this tier can do.
#![expect(unreachable_pub, reason = "files shared with dataplane/tests")]

mod cases;
#[path = "packets/conversations.rs"]
mod conversations;
#[path = "packets/host.rs"]
mod host;
#[path = "packets/noise.rs"]
mod noise;
mod support;
#[path = "packets/time.rs"]
mod time;

use host::Host;
use support::Setup;

#[test]
fn every_case_of_the_table_holds() {
    cases::run_all(&mut Host::new(&Setup::classic()));
}
