//! A minute of everything, for `make test`.

use anyhow::Result;

use super::{Run, Scenario, basic, failover, restore};
use crate::{
    node::Kind,
    service::{Mode, PairSpec},
    switch::Variant,
};

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "smoke",
        about: "a minute of everything, for `make test`",
        for_peers: true,
        run,
    }
}

fn run(run: &mut Run) -> Result<()> {
    for mode in [Mode::BothNat, Mode::Dnat] {
        basic::one_mode(run, mode, 100)?;
    }
    let interval = run.interval();
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval);
    for fault in [failover::Fault::Kill, failover::Fault::Stop] {
        failover::repeat(run, fault, &spec, 1, Variant::Learning)?;
    }
    if run.wanted.kind == Kind::Onearm {
        let plain = spec.without_authentication();
        failover::repeat(run, failover::Fault::Kill, &plain, 1, Variant::Learning)?;
    }
    if run.wanted.kind == Kind::Onearm {
        restore::restore(run)?;
    }
    Ok(())
}
