//! The table of packet cases, run over ordinary memory and in the kernel.

mod admission;
mod arp;
mod balanced;
mod choice;
pub mod direct;
mod edges;
mod egress;
mod endings;
mod fragments;
mod hairpin;
mod handover;
mod icmp_errors;
mod joined;
mod last_hops;
mod lease;
mod legs;
mod limits;
mod long_frames;
mod mss;
mod nd;
mod options;
mod orphans;
mod persistence;
mod pieces;
mod rare;
mod refusal;
mod reopen;
mod six;
mod strays;
mod tags;
mod tells;
mod too_big;
mod transit;

use crate::support::{
    Engine, Setup, Verdict,
    frames::{Body, End, Frame, Mac, use_v6, v6},
    model::{Expected, ends, translated, verifies},
    setup::OUR_MAC,
};
use onearm_dataplane_common::{
    counter::{COUNTERS, Counter},
    help,
};
use std::collections::HashSet;

/// One rule, checked by a few frames.
pub struct Case<E: Engine> {
    pub description: &'static str,
    /// What it checks exists in IPv4 only, or has another form in IPv6, with a case of its own.
    pub v4_only: bool,
    pub setup: fn() -> Setup,
    pub check: fn(&mut E),
}

/// Shorthand for a table row.
pub fn case<E: Engine>(description: &'static str, setup: fn() -> Setup, check: fn(&mut E)) -> Case<E> {
    Case {
        description,
        v4_only: false,
        setup,
        check,
    }
}

/// A row for IPv4 alone.
pub fn case4<E: Engine>(description: &'static str, setup: fn() -> Setup, check: fn(&mut E)) -> Case<E> {
    Case {
        v4_only: true,
        ..case(description, setup, check)
    }
}

/// Runs every case in both families, each from an empty table; names all that fail.
pub fn run_all<E: Engine>(engine: &mut E) {
    for v6 in [false, true] {
        let met = run_family(engine, v6);
        let missing: Vec<_> = COUNTERS
            .iter()
            .filter(|(counter, name)| !met.contains(name) && !is_met_elsewhere(*counter, v6))
            .map(|(_, name)| *name)
            .collect();
        assert!(missing.is_empty(), "no case meets {missing:?}; IPv6: {v6}");
    }
    use_v6(false);
}

/// What one processor cannot show, or this family does not have.
fn is_met_elsewhere(counter: Counter, v6: bool) -> bool {
    match counter {
        // Two processors at once; more events than a case sends frames: `dataplane/tests/prog_run.rs`.
        // Nor frames whose memory is in pieces of any length: `packets/time.rs`, too.
        // Nor half a minute: `packets/counts.rs`.
        Counter::FlowRaceLost
        | Counter::EventLost
        | Counter::TellsLost
        | Counter::HeadersInPieces
        | Counter::ClosedEvicted => true,
        Counter::UdpChecksumMissing | Counter::NdInvalid => !v6,
        Counter::Divided => v6,
        _ => false,
    }
}

/// Every case of the family that is in use.
pub fn tables<E: Engine>() -> Vec<Case<E>> {
    let (resolution, six) = if v6() {
        (nd::cases(), six::cases())
    } else {
        (arp::cases(), Vec::new())
    };
    let tables = [
        admission::cases(),
        resolution,
        balanced::cases(),
        choice::cases(),
        direct::cases(),
        direct::per_packet_cases(),
        edges::cases(),
        egress::cases(),
        endings::cases(),
        fragments::cases(),
        hairpin::cases(),
        handover::cases(),
        last_hops::cases(),
        lease::cases(),
        legs::cases(),
        icmp_errors::cases(),
        joined::cases(),
        limits::cases(),
        long_frames::cases(),
        mss::cases(),
        options::cases(),
        orphans::cases(),
        persistence::cases(),
        pieces::cases(),
        strays::cases(),
        tags::cases(),
        tells::cases(),
        rare::cases(),
        refusal::cases(),
        reopen::cases(),
        too_big::cases(),
        transit::cases(),
        six,
    ];
    let cases = tables.into_iter().flatten();
    cases.filter(|case| !v6() || !case.v4_only).collect()
}

/// Returns the counters that moved.
fn run_family<E: Engine>(engine: &mut E, v6: bool) -> HashSet<&'static str> {
    use_v6(v6);
    let cases = tables::<E>();
    let (mut failed, mut met) = (Vec::new(), HashSet::new());
    for case in &cases {
        engine.load(&(case.setup)());
        let check = std::panic::AssertUnwindSafe(|| (case.check)(engine));
        if std::panic::catch_unwind(check).is_err() {
            eprintln!(
                "FAILED ({}): {}; counters {:?}",
                if v6 { "IPv6" } else { "IPv4" },
                case.description,
                engine.counters()
            );
            failed.push(case.description);
        }
        met.extend(engine.counters().iter().map(|(name, _)| *name));
    }
    assert!(
        failed.is_empty(),
        "{} of {} cases failed: {failed:#?}",
        failed.len(),
        cases.len()
    );
    met
}

/// Expects a verdict and returns the frame.
#[track_caller]
pub fn expect<E: Engine>(engine: &mut E, frame: &[u8], verdict: Verdict) -> Vec<u8> {
    let (got, out) = engine.run(frame);
    assert_eq!(got, verdict, "counters {:?}", engine.counters());
    out
}

/// Expects a frame to pass as it came.
#[track_caller]
pub fn expect_pass<E: Engine>(engine: &mut E, frame: &[u8]) {
    assert_eq!(expect(engine, frame, Verdict::Pass), frame);
}

/// Expects a frame to be dropped and exactly these counters to have moved, by one each.
#[track_caller]
pub fn expect_drop<E: Engine>(engine: &mut E, frame: &[u8], reason: Counter) {
    let before = engine.counter(reason);
    expect(engine, frame, Verdict::Drop);
    assert_eq!(
        engine.counter(reason),
        before + 1,
        "counters {:?}",
        engine.counters()
    );
}

/// Expects a frame to be given to user space, for `what`; counted once.
#[track_caller]
pub fn expect_asked<E: Engine>(engine: &mut E, frame: &[u8], what: u8, most: u16) {
    let counter = if what == help::wanted::KEEP {
        Counter::FragmentKept
    } else {
        Counter::Divided
    };
    let before = engine.counter(counter);
    let out = expect(engine, frame, Verdict::Pass);
    let [high, low] = most.to_be_bytes();
    let header = [&OUR_MAC[..], &OUR_MAC, &[0x88, 0xb5, what, 0, high, low, 0, 0]].concat();
    assert_eq!(out, [&header[..], frame].concat());
    assert_eq!(engine.counter(counter), before + 1);
}

/// Sends a frame and checks every byte of what leaves. Returns the source it leaves with.
#[track_caller]
pub fn forwarded<E: Engine>(engine: &mut E, frame: &Frame, to: End, mac: Mac) -> End {
    let frame = frame.build();
    let out = expect(engine, &frame, Verdict::Transmit);
    let (source, _) = ends(&out);
    assert_eq!(
        out,
        translated(
            &frame,
            &Expected {
                from_mac: OUR_MAC,
                to_mac: mac,
                from: source,
                to
            }
        )
    );
    assert!(verifies(&out));
    source
}

/// Sends a frame and checks every byte of what leaves, the source too.
#[track_caller]
pub fn forwarded_from<E: Engine>(engine: &mut E, frame: &Frame, from: End, to: End, mac: Mac) {
    assert_eq!(forwarded(engine, frame, to, mac), from);
}

/// A client, the service it calls, the server that gets it, and their MACs.
#[derive(Clone, Copy, Debug)]
pub struct Talk {
    pub client: End,
    pub client_mac: Mac,
    pub vip: End,
    pub server: End,
    pub server_mac: Mac,
}

impl Talk {
    pub fn request(&self, body: Body) -> Frame {
        Frame::new(self.client, self.vip, body).via(self.client_mac)
    }

    pub fn reply(&self, source: End, body: Body) -> Frame {
        Frame::new(self.server, source, body).via(self.server_mac)
    }

    /// The SYN. Returns the source the server sees.
    #[track_caller]
    pub fn syn<E: Engine>(&self, engine: &mut E, seq: u32) -> End {
        forwarded(
            engine,
            &self.request(Body::Tcp("S", seq, 0)),
            self.server,
            self.server_mac,
        )
    }

    /// Three-way handshake from sequence numbers `seq` and `isn`. Returns the source the server sees.
    #[track_caller]
    pub fn handshake<E: Engine>(&self, engine: &mut E, seq: u32, isn: u32) -> End {
        let source = self.syn(engine, seq);
        self.server_sends(engine, source, Body::Tcp("SA", isn, seq.wrapping_add(1)));
        self.client_sends(
            engine,
            source,
            Body::Tcp("A", seq.wrapping_add(1), isn.wrapping_add(1)),
        );
        source
    }

    #[track_caller]
    pub fn client_sends<E: Engine>(&self, engine: &mut E, source: End, body: Body) {
        forwarded_from(engine, &self.request(body), source, self.server, self.server_mac);
    }

    #[track_caller]
    pub fn server_sends<E: Engine>(&self, engine: &mut E, source: End, body: Body) {
        forwarded_from(
            engine,
            &self.reply(source, body),
            self.vip,
            self.client,
            self.client_mac,
        );
    }
}
