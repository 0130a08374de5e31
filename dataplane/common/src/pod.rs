//! `aya::Pod` for every type that lies in a map, for user space.
#![expect(
    unsafe_code,
    reason = "Pod is a promise about layout, kept by the tests in maps/tests.rs"
)]

use crate::{addr, bench, decap, event, flow, maps, persistence, refusal};

macro_rules! pod {
    ($($t:ty),+ $(,)?) => {
        // SAFETY: `repr(C)`, integers only, padding explicit (checked by size in maps/tests.rs), no invalid bit pattern.
        $(unsafe impl aya::Pod for $t {})+
    };
}

pod!(
    addr::Addr,
    bench::Bench,
    decap::Settings,
    event::Event,
    flow::Bucket4,
    flow::Bucket6,
    flow::FlowEntry4,
    flow::FlowEntry6,
    flow::FlowKey,
    flow::FlowKey4,
    maps::EndpointKey,
    maps::FragmentKey,
    maps::LastHop,
    maps::Leg,
    maps::LegKey,
    maps::LegSlot,
    maps::NeighbourKey,
    maps::NextHop,
    maps::Limits,
    maps::Node,
    maps::Refusals,
    maps::Remembered,
    maps::Owned,
    maps::OwnedKey,
    maps::Route,
    maps::ScopedPrefix,
    maps::Server,
    maps::Service,
    maps::ServiceKey,
    maps::SnatPool,
    maps::SnatRange,
    maps::Stats,
    maps::Tunnel,
    persistence::Bucket,
    refusal::Meter,
);
