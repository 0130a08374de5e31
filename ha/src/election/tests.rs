//! Every (state, input) pair, and the rules one by one. Two machines against each other: `pair_tests`.

use std::net::{IpAddr, Ipv4Addr};

mod handover;

use super::*;
use crate::auth::{Freshness, Health, Kind, Signs};
use crate::lease;
use crate::units::{Centiseconds, MonoTime, Priority};

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 11));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 12));
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 66));
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const INTERVAL: u64 = 100 * MS;
/// `(256 − 150) × 100 ms / 256`
const SKEW: u64 = 41_406_250;
const WAIT: u64 = 3 * INTERVAL + SKEW;

fn interval(ms: u16) -> Centiseconds {
    Centiseconds::new(ms / 10).unwrap()
}

fn settings() -> Settings {
    Settings {
        priority: Priority::configured(150).unwrap(),
        interval: interval(100),
        preempt: false,
        preferred: true,
        address: OWN,
        peer: PEER,
        authenticated: false,
        stance: Stance::Normal,
    }
}

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * MS)
}

/// A machine with everything it has ordered since the last look.
struct Bench {
    now: MonoTime,
    machine: Election,
    ordered: Vec<Output>,
    sends_work: bool,
    flushes_work: bool,
}

impl Bench {
    fn new(settings: Settings) -> Self {
        let now = at(1000);
        Self {
            now,
            machine: Election::new(now, settings, 0),
            ordered: Vec::new(),
            sends_work: true,
            flushes_work: true,
        }
    }

    fn give(&mut self, input: Input) {
        self.machine.handle(self.now, input);
        while let Some(output) = self.machine.poll_output() {
            self.ordered.push(output);
            if let Output::Flush(number) = output
                && self.flushes_work
            {
                self.machine.handle(self.now, Input::Flushed(number));
            }
            if let Output::SendAdvert { kind, decided_at, .. } = output {
                let report = if self.sends_work {
                    Input::AdvertLeft { kind, decided_at }
                } else {
                    Input::AdvertFailed
                };
                self.machine.handle(self.now, report);
            }
        }
    }

    fn advert(&mut self, source: IpAddr, priority: u8) {
        let at = self.now;
        self.give(Input::Received(PairMessage::plain(
            at,
            source,
            Priority::from_wire(priority),
            interval(100),
        )));
    }

    /// Lets time pass, meeting every deadline exactly.
    fn pass(&mut self, nanos: u64) {
        let end = self.now.plus(nanos);
        while let Some(due) = self.machine.deadline().filter(|due| *due <= end) {
            self.now = due.max(self.now);
            self.give(Input::DeadlineReached);
        }
        self.now = end;
    }

    /// Lets time pass without being asked, then judges.
    fn stall(&mut self, nanos: u64) {
        self.now = self.now.plus(nanos);
        self.give(Input::DeadlineReached);
    }

    fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.ordered)
    }

    /// What was ordered since the last look, in words; deadlines and times left out.
    fn words(&mut self) -> Vec<String> {
        self.take()
            .iter()
            .map(|output| match output {
                Output::SendAdvert { kind, priority, .. } => format!("send {kind:?} {priority}"),
                Output::RenewLease { .. } => "renew".into(),
                Output::ClearLease => "clear".into(),
                Output::StartAnnouncing => "announce".into(),
                Output::AnnounceAgain => "announce again".into(),
                Output::StopAnnouncing => "hush".into(),
                Output::ReportTransition(t) => format!("{} {:?}", t.next, t.event),
                Output::RaiseAlarm(alarm) => format!("alarm {alarm:?}"),
                Output::Speak => "speak".into(),
                Output::Flush(number) => format!("flush {number}"),
                Output::Yield(yields) => format!("yield {yields}"),
                Output::Arm { until } if *until == MonoTime::ZERO => "disarm".into(),
                Output::Arm { .. } => "arm".into(),
                Output::Relay { until } if *until == MonoTime::ZERO => "relay no more".into(),
                Output::Relay { .. } => "relay".into(),
                Output::RefuseHandOver(unable) => format!("refuse {unable:?}"),
                Output::ShowWaiting(waits) => format!("waits {waits}"),
            })
            .collect()
    }

    fn standby(settings: Settings) -> Self {
        let mut bench = Self::new(settings);
        bench.give(Input::LegBecameUsable);
        bench.take();
        bench
    }

    fn active(settings: Settings) -> Self {
        let mut bench = Self::standby(settings);
        while bench.machine.role() != Role::Active {
            bench.pass(INTERVAL);
        }
        bench.pass(INTERVAL / 2);
        bench.take();
        bench
    }
}

/// The states a test can start from.
const STATES: [&str; 6] = [
    "initialize",
    "waiting",
    "released",
    "claiming",
    "preempting",
    "active",
];

fn bench_in(state: &str) -> Bench {
    let preempting = Settings {
        preempt: state == "preempting",
        ..settings()
    };
    let mut bench = match state {
        "initialize" => Bench::new(settings()),
        "active" => Bench::active(settings()),
        _ => Bench::standby(preempting),
    };
    match state {
        "released" => bench.advert(PEER, 0),
        "claiming" => bench.pass(SECOND - INTERVAL / 2),
        "preempting" => bench.advert(PEER, 100),
        _ => {}
    }
    bench.take();
    bench
}

/// One row a pair: state, input, role after, what was ordered.
#[test]
#[expect(clippy::too_many_lines, reason = "one row a pair")]
fn every_state_and_input_has_its_answer() {
    type Row = (&'static str, &'static str, Role, &'static [&'static str]);
    use Role::{Active, Initialize, Standby};
    const CLAIM: &str = "send Claim 1";
    const LISTEN: &str = "standby BeganListening";
    const LEG: &str = "initialize LegFailed(Down)";
    const FOREIGN: &str = "alarm ForeignGroup { source: 192.0.2.66 }";
    const LOOP: &str = "alarm LoopOrDuplicateAddress";
    let rows: &[Row] = &[
        ("initialize", "usable", Standby, &[LISTEN]),
        ("waiting", "usable", Standby, &[]),
        ("released", "usable", Standby, &[]),
        ("claiming", "usable", Standby, &[]),
        ("preempting", "usable", Standby, &[]),
        ("active", "usable", Active, &[]),
        ("initialize", "leg failed", Initialize, &[]),
        ("waiting", "leg failed", Initialize, &[LEG]),
        ("released", "leg failed", Initialize, &[LEG]),
        ("claiming", "leg failed", Initialize, &[LEG]),
        ("preempting", "leg failed", Initialize, &[LEG]),
        ("active", "leg failed", Initialize, &["clear", "hush", LEG]),
        ("initialize", "other failed", Initialize, &[]),
        ("waiting", "other failed", Standby, &[]),
        ("released", "other failed", Standby, &[]),
        ("claiming", "other failed", Standby, &[]),
        ("preempting", "other failed", Standby, &[]),
        ("active", "other failed", Active, &[]),
        ("initialize", "others work", Initialize, &[]),
        ("waiting", "others work", Standby, &[]),
        ("released", "others work", Standby, &[]),
        ("claiming", "others work", Standby, &[]),
        ("preempting", "others work", Standby, &[]),
        ("active", "others work", Active, &[]),
        ("initialize", "better", Initialize, &[]),
        ("waiting", "better", Standby, &[]),
        ("released", "better", Standby, &[]),
        ("claiming", "better", Standby, &[]),
        ("preempting", "better", Standby, &[]),
        (
            "active",
            "better",
            Standby,
            &["clear", "hush", "send Release 0", "standby BetterAdvert"],
        ),
        ("initialize", "worse", Initialize, &[]),
        ("waiting", "worse", Standby, &[]),
        ("released", "worse", Standby, &[]),
        ("claiming", "worse", Standby, &[]),
        ("preempting", "worse", Standby, &[]),
        ("active", "worse", Active, &["alarm Contended", "announce again"]),
        ("initialize", "claim", Initialize, &[]),
        ("waiting", "claim", Standby, &[]),
        ("released", "claim", Standby, &[]),
        ("claiming", "claim", Standby, &[]),
        ("preempting", "claim", Standby, &[]),
        ("active", "claim", Active, &[]),
        ("initialize", "release", Initialize, &[]),
        ("waiting", "release", Standby, &[]),
        ("released", "release", Standby, &[]),
        ("claiming", "release", Standby, &[]),
        ("preempting", "release", Standby, &[]),
        ("active", "release", Active, &["announce again"]),
        ("initialize", "own source", Initialize, &[LOOP]),
        ("waiting", "own source", Standby, &[LOOP]),
        ("released", "own source", Standby, &[LOOP]),
        ("claiming", "own source", Standby, &[LOOP]),
        ("preempting", "own source", Standby, &[LOOP]),
        ("active", "own source", Active, &[LOOP]),
        ("initialize", "foreign", Initialize, &[FOREIGN]),
        ("waiting", "foreign", Standby, &[FOREIGN]),
        ("released", "foreign", Standby, &[FOREIGN]),
        ("claiming", "foreign", Standby, &[FOREIGN]),
        ("preempting", "foreign", Standby, &[FOREIGN]),
        ("active", "foreign", Active, &[FOREIGN]),
        ("initialize", "left", Initialize, &[]),
        ("waiting", "left", Standby, &[]),
        ("released", "left", Standby, &[]),
        ("claiming", "left", Standby, &[]),
        ("preempting", "left", Standby, &[]),
        ("active", "left", Active, &["renew"]),
        ("initialize", "failed", Initialize, &["alarm SendErrors"]),
        ("waiting", "failed", Standby, &["alarm SendErrors"]),
        ("released", "failed", Standby, &["alarm SendErrors"]),
        ("claiming", "failed", Standby, &["alarm SendErrors"]),
        ("preempting", "failed", Standby, &["alarm SendErrors"]),
        ("active", "failed", Active, &["alarm SendErrors"]),
        ("initialize", "deadline", Initialize, &[]),
        ("waiting", "deadline", Standby, &[CLAIM]),
        (
            "released",
            "deadline",
            Active,
            &["active PeerReleased", "send Owner 150", "renew", "announce"],
        ),
        ("claiming", "deadline", Standby, &[CLAIM]),
        ("preempting", "deadline", Standby, &["send Preempt 150"]),
        ("active", "deadline", Active, &["renew"]),
        ("initialize", "hand over", Initialize, &["refuse NotActive"]),
        ("waiting", "hand over", Standby, &["refuse NotActive"]),
        ("released", "hand over", Standby, &["refuse NotActive"]),
        ("claiming", "hand over", Standby, &["refuse NotActive"]),
        ("preempting", "hand over", Standby, &["refuse NotActive"]),
        (
            "active",
            "hand over",
            Standby,
            &["relay", "clear", "hush", "send Release 0", "standby HandOver"],
        ),
        ("initialize", "peer legs", Initialize, &[]),
        ("waiting", "peer legs", Standby, &[]),
        ("released", "peer legs", Standby, &[]),
        ("claiming", "peer legs", Standby, &[]),
        ("preempting", "peer legs", Standby, &[]),
        ("active", "peer legs", Active, &[]),
        ("initialize", "take over", Initialize, &["refuse NotStandby"]),
        ("waiting", "take over", Standby, &["refuse NotAuthenticated"]),
        ("released", "take over", Standby, &["refuse NotAuthenticated"]),
        ("claiming", "take over", Standby, &["refuse NotAuthenticated"]),
        ("preempting", "take over", Standby, &["refuse NotAuthenticated"]),
        ("active", "take over", Active, &["refuse NotStandby"]),
        ("initialize", "stop", Initialize, &[]),
        ("waiting", "stop", Initialize, &["initialize Stop"]),
        ("released", "stop", Initialize, &["initialize Stop"]),
        ("claiming", "stop", Initialize, &["initialize Stop"]),
        ("preempting", "stop", Initialize, &["initialize Stop"]),
        (
            "active",
            "stop",
            Initialize,
            &["relay", "clear", "hush", "send Release 0", "initialize Stop"],
        ),
        ("initialize", "main silent", Initialize, &[]),
        ("waiting", "main silent", Initialize, &["initialize MainSilent"]),
        ("released", "main silent", Initialize, &["initialize MainSilent"]),
        ("claiming", "main silent", Initialize, &["initialize MainSilent"]),
        (
            "preempting",
            "main silent",
            Initialize,
            &["initialize MainSilent"],
        ),
        (
            "active",
            "main silent",
            Initialize,
            &[
                "relay",
                "clear",
                "hush",
                "send Release 0",
                "initialize MainSilent",
            ],
        ),
        // Without a leg the return of the main process changes nothing.
        ("initialize", "main speaks", Initialize, &[]),
        ("waiting", "main speaks", Standby, &[]),
        ("released", "main speaks", Standby, &[]),
        ("claiming", "main speaks", Standby, &[]),
        ("preempting", "main speaks", Standby, &[]),
        ("active", "main speaks", Active, &[]),
        ("initialize", "owner answers", Initialize, &[]),
        ("waiting", "owner answers", Standby, &[]),
        ("released", "owner answers", Standby, &[]),
        ("claiming", "owner answers", Standby, &[]),
        ("preempting", "owner answers", Standby, &[]),
        ("active", "owner answers", Active, &[]),
        ("initialize", "health", Initialize, &[]),
        ("waiting", "health", Standby, &[]),
        ("released", "health", Standby, &[]),
        ("claiming", "health", Standby, &[]),
        ("preempting", "health", Standby, &[]),
        ("active", "health", Active, &[]),
        ("initialize", "doubted", Initialize, &[]),
        ("waiting", "doubted", Standby, &[]),
        ("released", "doubted", Standby, &[]),
        ("claiming", "doubted", Standby, &[]),
        ("preempting", "doubted", Standby, &[]),
        ("active", "doubted", Active, &[]),
        ("initialize", "unanswered", Initialize, &[]),
        ("waiting", "unanswered", Standby, &[]),
        ("released", "unanswered", Standby, &[]),
        ("claiming", "unanswered", Standby, &[]),
        ("preempting", "unanswered", Standby, &[]),
        ("active", "unanswered", Active, &[]),
        ("initialize", "reconfigured", Initialize, &[]),
        ("waiting", "reconfigured", Standby, &[]),
        ("released", "reconfigured", Standby, &[]),
        ("claiming", "reconfigured", Standby, &[]),
        ("preempting", "reconfigured", Standby, &[]),
        ("active", "reconfigured", Active, &[]),
    ];
    let inputs: std::collections::BTreeSet<_> = rows.iter().map(|row| row.1).collect();
    assert_eq!(rows.len(), STATES.len() * inputs.len(), "a pair is missing");
    for (state, input, role, ordered) in rows {
        let mut bench = bench_in(state);
        match *input {
            "usable" => bench.give(Input::LegBecameUsable),
            "leg failed" => bench.give(Input::LegFailed(LegFault::Down)),
            "other failed" => bench.give(Input::OtherLegFailed),
            "others work" => bench.give(Input::OtherLegsRecovered),
            "better" => bench.advert(PEER, 200),
            "worse" => bench.advert(PEER, 100),
            "claim" => bench.advert(PEER, 1),
            "release" => bench.advert(PEER, 0),
            "own source" => bench.advert(OWN, 151),
            "foreign" => bench.advert(STRANGER, 250),
            "left" => {
                let decided_at = bench.now;
                bench.give(Input::AdvertLeft {
                    kind: Kind::Owner,
                    decided_at,
                });
            }
            "failed" => bench.give(Input::AdvertFailed),
            "deadline" => {
                bench.now = bench.machine.deadline().unwrap_or(bench.now);
                bench.give(Input::DeadlineReached);
            }
            "hand over" => bench.give(Input::HandOverOrdered { force: false }),
            "peer legs" => bench.give(Input::PeerLegsKnown(false)),
            "take over" => bench.give(Input::TakeOverOrdered),
            "stop" => bench.give(Input::StopOrdered),
            "main silent" => bench.give(Input::MainFellSilent),
            "main speaks" => bench.give(Input::MainSpokeAgain),
            "owner answers" => bench.give(Input::OwnerAnswered(bench.now)),
            "doubted" => bench.give(Input::WitnessDoubted(true)),
            "unanswered" => bench.give(Input::WitnessLeftUnanswered(bench.now)),
            "health" => bench.give(Input::HealthChanged(Health::LEGS)),
            "reconfigured" => bench.give(Input::Reconfigured(settings())),
            other => panic!("no such input: {other}"),
        }
        assert_eq!(bench.machine.role(), *role, "{state}, {input}");
        assert_eq!(bench.words(), *ordered, "{state}, {input}");
    }
}

#[test]
fn a_start_listens_for_a_second_and_asks_half_an_interval_before_it_ends() {
    let mut bench = Bench::standby(settings());
    bench.pass(SECOND - INTERVAL / 2 - 1);
    assert!(bench.words().is_empty());
    bench.pass(INTERVAL / 2);
    assert_eq!(bench.words(), ["send Claim 1"; 3]);
    bench.pass(1);
    assert_eq!(
        bench.words(),
        ["active WaitEnded", "send Owner 150", "renew", "announce"]
    );
}

#[test]
fn m9_the_node_that_is_not_preferred_listens_half_a_second_longer() {
    let mut bench = Bench::standby(Settings {
        preferred: false,
        ..settings()
    });
    bench.pass(SECOND + SECOND / 2 - 1);
    assert_eq!(bench.machine.role(), Role::Standby);
    bench.pass(1);
    assert_eq!(bench.machine.role(), Role::Active);
}

#[test]
fn b05_a_start_with_a_long_interval_listens_for_a_whole_wait() {
    let mut bench = Bench::standby(Settings {
        interval: interval(1000),
        ..settings()
    });
    bench.pass(10 * WAIT - 1);
    assert_eq!(bench.machine.role(), Role::Standby);
    bench.pass(1);
    assert_eq!(bench.machine.role(), Role::Active);
}

#[test]
fn the_wait_runs_from_the_kernels_receive_time() {
    let mut bench = Bench::standby(settings());
    let arrived = bench.now.plus(INTERVAL);
    bench.now = arrived.plus(20 * MS);
    bench.give(Input::Received(PairMessage::plain(
        arrived,
        PEER,
        Priority::from_wire(100),
        interval(100),
    )));
    assert_eq!(bench.machine.deadline(), Some(arrived.plus(WAIT - INTERVAL / 2)));
}

#[test]
fn the_skew_is_not_rounded_to_centiseconds() {
    let mut bench = Bench::standby(Settings {
        interval: interval(10),
        ..settings()
    });
    let now = bench.now;
    bench.give(Input::Received(PairMessage::plain(
        now,
        PEER,
        Priority::from_wire(100),
        interval(10),
    )));
    // 3 × 10 ms + 106/256 × 10 ms, less the 5 ms of asking.
    assert_eq!(
        bench.machine.deadline(),
        Some(now.plus(30 * MS + 4_140_625 - 5 * MS))
    );
}

#[test]
fn c7_the_lease_counts_from_the_decision_to_send_and_never_reaches_beyond_its_credit() {
    let mut bench = Bench::active(settings());
    bench.pass(INTERVAL);
    let mut advertised = MonoTime::ZERO;
    let mut renewals = 0;
    for output in bench.take() {
        match output {
            Output::SendAdvert { decided_at, .. } => advertised = decided_at,
            Output::RenewLease { deadline } => {
                renewals += 1;
                assert!(deadline <= bench.now.plus(lease::HORIZON_NANOS));
                assert!(advertised == MonoTime::ZERO || deadline <= advertised.plus(lease::length(INTERVAL)));
            }
            _ => {}
        }
    }
    assert!(
        (5..=10).contains(&renewals),
        "{renewals} renewals in one interval"
    );
}

#[test]
fn c7_a_stall_between_decision_and_report_does_not_lengthen_the_credit() {
    let mut bench = Bench::active(settings());
    let decided_at = bench.now;
    bench.now = bench.now.plus(lease::length(INTERVAL) - INTERVAL);
    bench.give(Input::AdvertLeft {
        kind: Kind::Owner,
        decided_at,
    });
    bench.take();
    // Only what the advert itself permits is left.
    bench.now = decided_at.plus(lease::length(INTERVAL));
    bench.give(Input::LegBecameUsable);
    assert_eq!(bench.machine.role(), Role::Active);
    bench.now = bench.now.plus(1);
    bench.give(Input::LegBecameUsable);
    assert_eq!(bench.machine.role(), Role::Standby);
}

#[test]
fn c7_an_advert_that_left_after_the_previous_credit_ended_credits_nothing() {
    let mut bench = Bench::active(settings());
    bench.now = bench.machine.deadline().unwrap();
    while bench.machine.status().role == Role::Active && bench.ordered.is_empty() {
        bench.machine.handle(bench.now, Input::DeadlineReached);
        while let Some(output) = bench.machine.poll_output() {
            if let Output::SendAdvert { .. } = output {
                bench.ordered.push(output);
            }
        }
        bench.now = bench.machine.deadline().unwrap().max(bench.now);
    }
    // The process stalls between the decision and the end of the send.
    let decided_at = match bench.take()[..] {
        [Output::SendAdvert { decided_at, .. }] => decided_at,
        ref other => panic!("{other:?}"),
    };
    bench.now = decided_at.plus(lease::length(INTERVAL));
    bench.give(Input::AdvertLeft {
        kind: Kind::Owner,
        decided_at,
    });
    assert_eq!(
        bench.words(),
        ["alarm LeaseLapsed", "clear", "hush", "standby LeaseLapsed"]
    );
}

#[test]
fn c7_an_active_that_stalled_past_its_credit_rejoins_as_standby() {
    let mut bench = Bench::active(settings());
    bench.stall(lease::length(INTERVAL));
    assert_eq!(
        bench.words(),
        ["alarm LeaseLapsed", "clear", "hush", "standby LeaseLapsed"]
    );
    assert_eq!(bench.machine.counters().lease_lapsed, 1);
    assert_eq!(
        bench.machine.deadline(),
        Some(bench.now.plus(WAIT - INTERVAL / 2))
    );
}

#[test]
fn an_active_that_stalled_for_less_goes_on() {
    let mut bench = Bench::active(settings());
    bench.stall(INTERVAL);
    assert_eq!(bench.words(), ["send Owner 150", "renew"]);
}

#[test]
fn c11_a_standby_that_overslept_waits_anew() {
    let mut bench = Bench::standby(settings());
    bench.advert(PEER, 200);
    bench.stall(WAIT + 1);
    assert_eq!(bench.words(), ["alarm Overslept"]);
    assert_eq!(
        bench.machine.deadline(),
        Some(bench.now.plus(WAIT - INTERVAL / 2))
    );
    assert_eq!(bench.machine.counters().overslept, 1);
}

#[test]
fn c11_a_claim_that_is_late_by_less_than_half_an_interval_still_leaves_time_for_answers() {
    let mut bench = Bench::standby(settings());
    bench.advert(PEER, 200);
    bench.stall(WAIT - 1);
    assert_eq!(bench.words(), ["send Claim 1"]);
    let asked = bench.now;
    bench.pass(INTERVAL);
    assert_eq!(bench.machine.role(), Role::Active);
    assert_eq!(bench.machine.status().since, asked.plus(INTERVAL / 2));
}

#[test]
fn c11_a_claimer_that_overslept_waits_anew() {
    let mut bench = bench_in("claiming");
    bench.stall(INTERVAL + 1);
    assert_eq!(bench.words(), ["alarm Overslept"]);
    let mut bench = bench_in("released");
    bench.stall(INTERVAL);
    assert_eq!(bench.words(), ["alarm Overslept"]);
}

#[test]
fn of_two_that_ask_the_one_with_the_lower_address_waits_one_interval_more() {
    let mut low = bench_in("claiming");
    low.advert(PEER, 1);
    assert_eq!(
        low.machine.deadline(),
        Some(low.now.plus(WAIT + INTERVAL - INTERVAL / 2))
    );
    assert_eq!(low.machine.counters().claims_lost, 1);

    let mut high = Bench::standby(Settings {
        address: PEER,
        peer: OWN,
        ..settings()
    });
    high.pass(SECOND - INTERVAL / 2);
    high.advert(OWN, 1);
    assert_eq!(high.machine.deadline(), Some(high.now.plus(WAIT - INTERVAL / 2)));
    assert_eq!(high.machine.counters().claims_lost, 0);
}

#[test]
fn b01_on_equal_priority_the_lower_address_steps_down() {
    let mut low = Bench::active(settings());
    low.advert(PEER, 150);
    assert_eq!(low.machine.role(), Role::Standby);
    let mut high = Bench::active(Settings {
        address: PEER,
        peer: OWN,
        ..settings()
    });
    high.advert(OWN, 150);
    assert_eq!(high.machine.role(), Role::Active);
    assert!(
        high.take().contains(&Output::AnnounceAgain),
        "the winner announces again"
    );
}

#[test]
fn b01_addresses_compare_as_unsigned_numbers() {
    let high = IpAddr::V4(Ipv4Addr::new(200, 0, 0, 1));
    let mut bench = Bench::active(Settings {
        address: IpAddr::V4(Ipv4Addr::new(100, 0, 0, 1)),
        peer: high,
        ..settings()
    });
    bench.advert(high, 150);
    assert_eq!(bench.machine.role(), Role::Standby);
}

#[test]
fn b86_ipv6_addresses_compare_as_unsigned_numbers_of_128_bits() {
    for (low, high) in [
        ("fe80::1", "fe80::ffff:1"),
        ("fe80::1", "fe80::8000:0:0:1"),
        ("fe80::7fff:ffff:ffff:ffff", "fe80::8000:0:0:0"),
        ("fe80::ffff:ffff:ffff:ffff", "fe81::"),
    ] {
        let (low, high) = (low.parse().unwrap(), high.parse().unwrap());
        let of = |address, peer| Settings {
            address,
            peer,
            ..settings()
        };
        let mut lower = Bench::active(of(low, high));
        lower.advert(high, 150);
        assert_eq!(lower.machine.role(), Role::Standby, "{high} is above {low}");
        let mut higher = Bench::active(of(high, low));
        higher.advert(low, 150);
        assert_eq!(higher.machine.role(), Role::Active, "{low} is below {high}");
    }
}

#[test]
fn b30_a_standby_of_equal_or_higher_priority_stays_standby() {
    for preempt in [false, true] {
        for address in [OWN, PEER] {
            let peer = if address == OWN { PEER } else { OWN };
            let mut bench = Bench::standby(Settings {
                preempt,
                address,
                peer,
                ..settings()
            });
            for _ in 0..50 {
                bench.advert(peer, 150);
                bench.pass(INTERVAL);
            }
            assert_eq!(bench.machine.role(), Role::Standby);
            assert!(bench.words().is_empty());
        }
    }
}

#[test]
fn without_preemption_a_worse_owner_stays() {
    let mut bench = Bench::standby(settings());
    for _ in 0..50 {
        bench.advert(PEER, 3);
        bench.pass(INTERVAL);
    }
    assert!(bench.words().is_empty());
}

#[test]
fn with_preemption_the_better_standby_asks_for_release_and_takes_over_after_it() {
    let mut bench = Bench::standby(Settings {
        preempt: true,
        ..settings()
    });
    for _ in 0..3 {
        bench.advert(PEER, 100);
        bench.pass(INTERVAL);
    }
    assert_eq!(bench.words(), ["send Preempt 150"; 4]);
    bench.advert(PEER, 0);
    bench.pass(RELEASE_WAIT_MAX_NANOS);
    assert_eq!(bench.machine.role(), Role::Active);
}

#[test]
fn b02_a_failed_leg_sends_nothing_and_comes_back_listening() {
    let mut bench = Bench::active(settings());
    bench.give(Input::LegFailed(LegFault::NoAddress));
    bench.pass(5 * SECOND);
    assert_eq!(
        bench.words(),
        ["clear", "hush", "initialize LegFailed(NoAddress)"]
    );
    assert_eq!(bench.machine.status().leg_fault, Some(LegFault::NoAddress));
    bench.give(Input::LegBecameUsable);
    assert_eq!(bench.words(), ["standby BeganListening"]);
    assert_eq!(
        bench.machine.deadline(),
        Some(bench.now.plus(SECOND - INTERVAL / 2))
    );
}

#[test]
fn b09_repeated_send_errors_end_the_term_with_an_alarm() {
    let mut bench = Bench::active(settings());
    bench.sends_work = false;
    bench.pass(lease::length(INTERVAL));
    assert_eq!(bench.machine.role(), Role::Standby);
    let words = bench.words();
    assert!(words.contains(&"alarm SendErrors".to_owned()), "{words:?}");
    assert_eq!(words.last().map(String::as_str), Some("standby SendErrors"));
    assert!(bench.machine.status().send_failing);
    // Unable to ask, it never claims, and hears the peer meanwhile.
    bench.pass(20 * WAIT);
    assert_eq!(bench.machine.role(), Role::Standby);
    bench.sends_work = true;
    bench.pass(2 * WAIT);
    assert_eq!(bench.machine.role(), Role::Active);
    assert!(!bench.machine.status().send_failing);
}

#[test]
fn b09_a_single_send_error_is_retried_soon() {
    let mut bench = Bench::active(settings());
    bench.sends_work = false;
    bench.pass(INTERVAL / 2);
    bench.sends_work = true;
    bench.take();
    bench.pass(INTERVAL / 4);
    assert!(bench.words().contains(&"send Owner 150".to_owned()));
    assert_eq!(bench.machine.role(), Role::Active);
}

#[test]
fn b11_a_release_shortens_the_wait_to_the_skew_or_5_ms() {
    let mut bench = Bench::standby(settings());
    bench.advert(PEER, 200);
    bench.advert(PEER, 0);
    assert_eq!(
        bench.machine.deadline(),
        Some(bench.now.plus(RELEASE_WAIT_MAX_NANOS))
    );
    let mut quick = Bench::standby(Settings {
        interval: interval(10),
        ..settings()
    });
    quick.give(Input::Received(PairMessage::plain(
        quick.now,
        PEER,
        Priority::from_wire(200),
        interval(10),
    )));
    quick.advert(PEER, 0);
    assert_eq!(quick.machine.deadline(), Some(quick.now.plus(4_140_625)));
}

#[test]
fn b11_an_owner_heard_after_its_release_holds_the_standby_again() {
    let mut bench = Bench::standby(settings());
    bench.advert(PEER, 0);
    bench.advert(PEER, 200);
    assert_eq!(
        bench.machine.deadline(),
        Some(bench.now.plus(WAIT - INTERVAL / 2))
    );
}

#[test]
fn the_last_words_of_the_owner_before_by_a_slower_path_are_no_contention() {
    let owner = |at: MonoTime, epoch, unheard_nanos| {
        Input::Received(PairMessage {
            kind: Kind::Owner,
            said: Some(Said {
                signs: Signs::default(),
                freshness: Freshness::Known,
                unheard_nanos,
                epoch,
                health: Health::RECEIVES,
                hears_twins: false,
                is_late: false,
            }),
            ..PairMessage::plain(at, PEER, Priority::from_wire(100), interval(100))
        })
    };
    let active = || {
        let mut bench = Bench::active(Settings {
            authenticated: true,
            ..settings()
        });
        bench.take();
        bench
    };
    let alarmed = |bench: &mut Bench| bench.words().contains(&"alarm Contended".to_owned());
    let mut bench = active();
    let epoch = bench.machine.status().epoch;
    let now = bench.now;
    bench.give(owner(now, epoch - 1, u64::MAX));
    assert!(!alarmed(&mut bench));
    assert_eq!(
        (
            bench.machine.counters().late_owner,
            bench.machine.counters().contended
        ),
        (1, 0)
    );
    assert_eq!(bench.machine.status().contention, None);
    // It is still there, and does not hear this node.
    bench.pass(2 * INTERVAL);
    let now = bench.now;
    bench.give(owner(now, epoch - 1, u64::MAX));
    assert!(alarmed(&mut bench));
    let found = bench.machine.status().contention.unwrap();
    assert_eq!((found.first_at, found.messages, found.gave_way), (now, 1, false));
    assert_eq!((found.epoch, found.own_epoch), (Some(epoch - 1), epoch));
    bench.pass(INTERVAL);
    let now = bench.now;
    bench.give(owner(now, epoch - 1, u64::MAX));
    let found = bench.machine.status().contention.unwrap();
    assert_eq!((found.last_at, found.messages), (now, 2));
    // It has heard of this term, and owns all the same.
    let mut bench = active();
    bench.pass(INTERVAL / 2);
    let now = bench.now;
    bench.give(owner(now, epoch - 1, 0));
    assert!(alarmed(&mut bench));
    // One of a later term: this node gives way, and says that there were two.
    let mut bench = active();
    let now = bench.now;
    bench.give(owner(now, epoch + 1, u64::MAX));
    assert!(alarmed(&mut bench));
    assert_eq!(bench.machine.role(), Role::Standby);
    assert!(bench.machine.status().contention.unwrap().gave_way);
}

#[test]
fn b12_the_winner_of_a_contention_announces_again_and_answers_at_once() {
    let mut bench = Bench::active(settings());
    bench.advert(PEER, 100);
    bench.pass(0);
    assert_eq!(
        bench.words(),
        ["alarm Contended", "announce again", "send Owner 150", "renew"]
    );
    bench.pass(INTERVAL / 2);
    bench.take();
    bench.advert(PEER, 0);
    bench.pass(0);
    assert_eq!(bench.words(), ["announce again", "send Owner 150", "renew"]);
}

#[test]
fn an_owner_answers_a_claim_at_once_but_leaves_space_between_adverts() {
    let mut bench = Bench::active(settings());
    for _ in 0..1000 {
        bench.advert(PEER, 1);
        bench.pass(INTERVAL / 1000);
    }
    let sent = bench
        .words()
        .iter()
        .filter(|word| word.starts_with("send"))
        .count();
    assert!((8..=10).contains(&sent), "{sent} adverts in one interval");
}

#[test]
fn b25_the_own_source_address_never_changes_the_role_and_is_reported_once() {
    for state in STATES {
        let mut bench = bench_in(state);
        let before = (bench.machine.role(), bench.machine.deadline());
        for priority in [0, 1, 150, 151, 255] {
            bench.advert(OWN, priority);
        }
        assert_eq!(
            (bench.machine.role(), bench.machine.deadline()),
            before,
            "{state}"
        );
        assert_eq!(bench.words(), ["alarm LoopOrDuplicateAddress"], "{state}");
        assert_eq!(bench.machine.counters().own_source_received, 5);
    }
}

#[test]
fn b28_m17_a_foreign_group_moves_nothing_is_counted_and_alarmed_and_answered() {
    for state in STATES {
        let mut bench = bench_in(state);
        let role = bench.machine.role();
        let deadline = bench.machine.deadline();
        bench.advert(STRANGER, 250);
        bench.advert(STRANGER, 0);
        assert_eq!(bench.machine.role(), role, "{state}");
        assert_eq!(bench.machine.counters().foreign_received, 2);
        if role == Role::Active {
            assert_eq!(bench.machine.deadline(), Some(bench.now), "answers at once");
        } else {
            assert_eq!(bench.machine.deadline(), deadline, "{state}");
        }
    }
}

#[test]
fn m17_a_learned_interval_is_clamped_to_three_seconds_or_ten_own_intervals() {
    for (own, clamped) in [(100, 3 * SECOND), (1000, 10 * SECOND)] {
        let mut bench = Bench::standby(Settings {
            interval: interval(own),
            ..settings()
        });
        bench.give(Input::Received(PairMessage::plain(
            bench.now,
            PEER,
            Priority::from_wire(200),
            Centiseconds::new(4095).unwrap(),
        )));
        assert_eq!(bench.machine.status().learned_interval_nanos, clamped);
        assert_eq!(bench.machine.counters().interval_clamped, 1);
        assert!(bench.words()[0].starts_with("alarm IntervalClamped"));
    }
}

#[test]
fn b24_another_address_list_is_counted_alarmed_once_and_holds_the_standby() {
    let mut bench = Bench::standby(settings());
    for _ in 0..50 {
        bench.give(Input::Received(PairMessage {
            same_addresses: false,
            ..PairMessage::plain(bench.now, PEER, Priority::from_wire(200), interval(100))
        }));
        bench.pass(INTERVAL);
    }
    assert_eq!(bench.machine.role(), Role::Standby);
    assert_eq!(bench.words(), ["alarm AddressListDiffers"]);
    assert_eq!(bench.machine.counters().address_list_differed, 50);
}

#[test]
fn after_a_hand_over_preemption_rests_until_the_peer_lets_go() {
    let mut bench = Bench::active(Settings {
        preempt: true,
        ..settings()
    });
    bench.give(Input::HandOverOrdered { force: false });
    bench.take();
    for _ in 0..20 {
        bench.advert(PEER, 100);
        bench.pass(INTERVAL);
    }
    assert!(bench.words().is_empty());
    bench.advert(PEER, 0);
    bench.pass(RELEASE_WAIT_MAX_NANOS);
    assert_eq!(bench.machine.role(), Role::Active);
}

#[test]
fn a_release_that_crosses_the_own_one_is_not_taken_at_its_word() {
    let mut bench = Bench::active(settings());
    bench.give(Input::HandOverOrdered { force: false });
    bench.take();
    bench.advert(PEER, 0);
    bench.pass(INTERVAL / 2);
    assert_eq!(bench.words()[..3], ["send Claim 1"; 3]);
    assert_eq!(bench.machine.role(), Role::Active);
}

#[test]
fn a_release_of_a_peer_that_took_over_in_between_crosses_none() {
    for (heard_after, at_once) in [(20, false), (60, true)] {
        let mut bench = Bench::active(settings());
        bench.give(Input::HandOverOrdered { force: false });
        bench.pass(heard_after * MS);
        bench.advert(PEER, 100);
        bench.pass(10 * MS);
        bench.advert(PEER, 0);
        bench.pass(RELEASE_WAIT_MAX_NANOS);
        assert_eq!(bench.machine.role() == Role::Active, at_once, "{heard_after} ms");
    }
}

#[test]
fn a_silent_main_process_keeps_the_node_out_until_it_speaks() {
    let mut bench = Bench::active(settings());
    bench.give(Input::MainFellSilent);
    bench.pass(10 * SECOND);
    assert_eq!(bench.machine.role(), Role::Initialize);
    bench.take();
    bench.give(Input::MainSpokeAgain);
    assert_eq!(bench.words(), ["standby BeganListening"]);
}

#[test]
fn an_answer_for_an_owned_address_holds_an_authenticated_claim_unless_it_is_older_than_the_claim() {
    let mut bench = Bench::standby(Settings {
        authenticated: true,
        ..settings()
    });
    bench.pass(SECOND - INTERVAL / 2);
    bench.take();
    let asked_at = bench.now;
    bench.give(Input::OwnerAnswered(asked_at.minus(1)));
    assert_eq!(bench.words(), [""; 0]);
    bench.pass(1);
    bench.give(Input::OwnerAnswered(bench.now));
    assert_eq!(bench.words(), ["alarm AdvertsLost"]);
    assert_eq!(bench.machine.counters().owner_answered, 1);
    bench.pass(INTERVAL / 2);
    bench.give(Input::DeadlineReached);
    assert_eq!(bench.machine.role(), Role::Standby, "it waits anew");
    // Nobody answers any more.
    bench.pass(4 * INTERVAL);
    assert_eq!(bench.machine.role(), Role::Active);
}

#[test]
fn a_plain_router_that_answers_for_what_it_has_given_up_holds_nobody() {
    let mut bench = bench_in("claiming");
    bench.pass(1);
    bench.give(Input::OwnerAnswered(bench.now));
    assert_eq!(bench.machine.counters().owner_answered, 1);
    bench.pass(INTERVAL / 2);
    assert_eq!(bench.machine.role(), Role::Active);
}

#[test]
fn a_stopped_machine_never_comes_back() {
    let mut bench = Bench::active(settings());
    bench.give(Input::StopOrdered);
    bench.take();
    bench.give(Input::LegBecameUsable);
    bench.give(Input::MainSpokeAgain);
    bench.pass(10 * SECOND);
    assert!(bench.words().is_empty());
}

#[test]
fn m18_a_changed_interval_is_advertised_at_the_shorter_rate_and_leased_by_the_shorter_one() {
    for (old, new) in [(1000u16, 100u16), (100, 1000)] {
        let mut bench = Bench::active(Settings {
            interval: interval(old),
            ..settings()
        });
        bench.give(Input::Reconfigured(Settings {
            interval: interval(new),
            ..settings()
        }));
        bench.pass(SECOND - 1);
        let mut adverts = 0;
        let mut last = MonoTime::ZERO;
        for output in bench.take() {
            match output {
                Output::SendAdvert {
                    interval: wire,
                    decided_at,
                    ..
                } => {
                    adverts += 1;
                    last = decided_at;
                    assert_eq!(wire, interval(new), "{old} to {new}");
                }
                Output::RenewLease { deadline } if new > old => {
                    assert!(deadline <= last.plus(lease::length(INTERVAL)), "{old} to {new}");
                }
                _ => {}
            }
        }
        assert_eq!(adverts, 10, "{old} to {new}");
        assert_eq!(bench.machine.role(), Role::Active, "{old} to {new}");
        bench.pass(10 * SECOND);
        assert_eq!(bench.machine.role(), Role::Active, "{old} to {new}");
    }
}

#[test]
fn an_owner_gives_way_for_the_witness_to_a_peer_that_looked_since_it_doubted_and_after_asking_once_more() {
    let whole = Health::DATAPLANE.with(Health::WITNESS).with(Health::LEGS);
    // When the peer had heard the owner last and when it answered, when the last question was asked in vain: ms after the doubt.
    for (heard, answered, asked, gives_way) in [(1, 2, 3, true), (-1, 2, 3, false), (1, 3, 2, false)] {
        let mut bench = Bench::active(Settings {
            authenticated: true,
            ..settings()
        });
        bench.give(Input::HealthChanged(whole));
        bench.pass(SECOND);
        let doubted_at = bench.now;
        bench.give(Input::WitnessDoubted(true));
        bench.pass(answered * MS);
        let mut message = word(&bench, Kind::Standby, Freshness::Proved, 1);
        if let Some(said) = &mut message.said {
            said.health = whole.with(Health::RECEIVES);
            said.unheard_nanos = (answered.cast_signed() - heard).cast_unsigned() * MS;
        }
        bench.give(Input::Received(message));
        bench.pass((4 - answered) * MS);
        bench.give(Input::HealthChanged(whole.without(Health::WITNESS)));
        bench.give(Input::WitnessLeftUnanswered(doubted_at.plus(asked * MS)));
        let role = if gives_way { Role::Standby } else { Role::Active };
        assert_eq!(bench.machine.role(), role, "{heard} {answered} {asked}");
    }
}

#[test]
fn an_alarm_of_one_kind_is_raised_once_a_minute() {
    let mut bench = Bench::standby(settings());
    for _ in 0..1210 {
        bench.advert(PEER, 200);
        bench.advert(STRANGER, 200);
        bench.pass(INTERVAL);
    }
    assert_eq!(bench.words().len(), 3);
}

#[test]
fn inputs_are_serde_values() {
    let input = Input::Received(PairMessage::plain(at(5), PEER, Priority::RELEASE, interval(100)));
    let line = serde_json::to_string(&input).unwrap();
    assert_eq!(serde_json::from_str::<Input>(&line).unwrap(), input);
}

#[test]
fn an_owner_that_loses_another_leg_says_so_at_once_and_owns_until_a_better_node_wants_to() {
    let mut bench = Bench::active(settings());
    bench.give(Input::OtherLegFailed);
    bench.give(Input::DeadlineReached);
    assert_eq!(bench.words(), ["send Owner 2", "renew"]);
    assert_eq!(bench.machine.status().priority, Priority::IMPAIRED);
    bench.pass(10 * INTERVAL);
    assert_eq!(bench.machine.role(), Role::Active, "nobody else is there");
    bench.take();
    // The peer has lost a leg, too, and asks because it did not hear us.
    bench.advert(PEER, 1);
    assert_eq!(bench.machine.role(), Role::Active);
    bench.advert(PEER, 100);
    assert_eq!(
        bench.words(),
        ["clear", "hush", "send Release 0", "standby BetterAdvert"]
    );
}

#[test]
fn a_leg_that_recovers_gives_its_owner_its_priority_back() {
    let mut bench = Bench::active(settings());
    bench.give(Input::OtherLegFailed);
    bench.pass(INTERVAL);
    bench.take();
    bench.give(Input::OtherLegsRecovered);
    bench.pass(INTERVAL / 8);
    assert!(bench.words().contains(&"send Owner 150".to_owned()));
}

#[test]
fn b33_without_authentication_what_is_tracked_shows_as_priority_and_comes_back_whole() {
    let health = |tracked| Input::HealthChanged(Health::LEGS.with(tracked));
    let mut bench = Bench::active(settings());
    bench.give(health(Health::TRACKED));
    assert_eq!(bench.machine.status().priority.get(), 150);
    bench.give(health(Health::SERVERS));
    bench.give(Input::DeadlineReached);
    assert_eq!(bench.words(), ["send Owner 2", "renew"]);
    // Any number of losses is one (B35).
    bench.give(health(Health::default()));
    bench.give(health(Health::SCRIPTS));
    bench.give(health(Health::TRACKED));
    bench.pass(INTERVAL / 8);
    assert!(bench.words().contains(&"send Owner 150".to_owned()));
    let authenticated = Settings {
        authenticated: true,
        ..settings()
    };
    let mut bench = Bench::active(authenticated);
    bench.give(health(Health::default()));
    assert_eq!(bench.machine.status().priority.get(), 150, "the word tells");
}

#[test]
fn a_standby_with_all_legs_displaces_an_owner_without_and_no_other_unless_it_may_preempt() {
    let preempts = |bench: &mut Bench, heard: u8| {
        bench.advert(PEER, heard);
        bench.give(Input::DeadlineReached);
        bench.words().iter().any(|word| word.starts_with("send Preempt"))
    };
    let mut bench = Bench::standby(settings());
    assert!(preempts(&mut bench, 2));
    let mut bench = Bench::standby(settings());
    assert!(!preempts(&mut bench, 3));
    let mut bench = Bench::standby(settings());
    assert!(!preempts(&mut bench, 1), "a claim owns nothing");
    // Both have lost a leg: nobody moves.
    for preempt in [false, true] {
        let mut bench = Bench::standby(Settings {
            preempt,
            ..settings()
        });
        bench.give(Input::OtherLegFailed);
        assert!(!preempts(&mut bench, 2) && !preempts(&mut bench, 100));
    }
}

/// A message of the peer that proves this much.
fn word(bench: &Bench, kind: Kind, freshness: Freshness, epoch: u64) -> PairMessage {
    PairMessage {
        kind,
        said: Some(Said {
            freshness,
            unheard_nanos: 0,
            epoch,
            health: Health::RECEIVES,
            hears_twins: false,
            signs: Signs::default(),
            is_late: false,
        }),
        ..PairMessage::plain(bench.now, PEER, Priority::from_wire(100), interval(100))
    }
}

#[test]
fn what_the_peer_said_before_its_term_and_comes_late_by_another_path_is_no_release() {
    let settings = Settings {
        authenticated: true,
        ..settings()
    };
    for (kind, epoch, took_over) in [
        (Kind::Standby, 4, false),
        (Kind::Idle, 4, false),
        (Kind::Release, 4, false),
        (Kind::Standby, 5, true),
        (Kind::Release, 5, true),
    ] {
        let mut bench = Bench::standby(settings);
        for (kind, epoch) in [(Kind::Owner, 5), (kind, epoch)] {
            let heard = word(&bench, kind, Freshness::Proved, epoch);
            bench.give(Input::Received(heard));
        }
        bench.pass(MS);
        assert_eq!(
            bench.machine.role() == Role::Active,
            took_over,
            "{kind:?} {epoch}"
        );
    }
}

#[test]
fn a_recording_of_another_life_tells_neither_interval_nor_priority_nor_a_peer_that_is_there() {
    let mut bench = Bench::standby(Settings {
        authenticated: true,
        ..settings()
    });
    let heard = PairMessage {
        interval: interval(1000),
        ..word(&bench, Kind::Owner, Freshness::Unproved, 5)
    };
    bench.give(Input::Received(heard));
    let status = bench.machine.status();
    assert_eq!(status.learned_interval_nanos, INTERVAL);
    assert_eq!((status.peer_priority, status.peer_heard_at), (None, None));
    let heard = word(&bench, Kind::Owner, Freshness::Known, 5);
    bench.give(Input::Received(heard));
    let status = bench.machine.status();
    assert_eq!(status.peer_priority, Some(Priority::from_wire(100)));
    assert_eq!(status.peer_heard_at, Some(bench.now));
}

#[test]
fn a_cloned_node_takes_nothing_over_by_release_either_and_is_not_called_deaf() {
    let mut bench = Bench::standby(Settings {
        authenticated: true,
        ..settings()
    });
    for kind in [Kind::Owner, Kind::Release] {
        let mut heard = word(&bench, kind, Freshness::Proved, 5);
        heard.said.as_mut().unwrap().hears_twins = true;
        bench.give(Input::Received(heard));
    }
    bench.pass(2 * SECOND);
    assert_eq!(bench.machine.role(), Role::Standby);
    assert_eq!(bench.words(), ["alarm Cloned"]);
    bench.pass(2 * SECOND);
    assert_eq!(
        bench.machine.role(),
        Role::Active,
        "the peer tells of no clone any more"
    );
}

/// Everything a node needs to be armed.
const FIT: Health = Health(Health::DATAPLANE.0 | Health::RECEIVES.0 | Health::LEGS.0);

fn authenticated() -> Settings {
    Settings {
        authenticated: true,
        ..settings()
    }
}

/// A message of the peer with signs, as one that can serve says it.
fn sign(bench: &Bench, kind: Kind, freshness: Freshness, signs: Signs) -> PairMessage {
    let mut heard = word(bench, kind, freshness, if kind == Kind::Owner { 5 } else { 1 });
    if let Some(said) = &mut heard.said {
        (said.signs, said.health) = (signs, FIT);
    }
    heard
}

/// A Standby of the owner of term 5, that can serve.
fn fit_standby(settings: Settings) -> Bench {
    let mut bench = Bench::standby(settings);
    bench.give(Input::HealthChanged(FIT));
    let owner = sign(&bench, Kind::Owner, Freshness::Proved, Signs::default());
    bench.give(Input::Received(owner));
    bench.take();
    bench
}

/// An Active whose peer can serve.
fn fit_active() -> Bench {
    let mut bench = Bench::active(authenticated());
    bench.give(Input::HealthChanged(FIT));
    let there = sign(&bench, Kind::Standby, Freshness::Proved, Signs::default());
    bench.give(Input::Received(there));
    bench.take();
    bench
}

#[test]
fn a_grant_is_taken_only_from_the_owner_of_the_newest_term_that_proves_to_be_there() {
    let armed = |change: &dyn Fn(&mut PairMessage)| {
        let mut bench = fit_standby(authenticated());
        let mut heard = sign(&bench, Kind::Owner, Freshness::Proved, Signs::ARMS);
        change(&mut heard);
        bench.give(Input::Received(heard));
        bench.words().contains(&"arm".to_owned())
    };
    let said = |change: fn(&mut Said)| move |heard: &mut PairMessage| change(heard.said.as_mut().unwrap());
    assert!(armed(&|_| ()));
    assert!(!armed(&said(|said| said.freshness = Freshness::Known)));
    assert!(!armed(&said(|said| said.freshness = Freshness::Unproved)));
    assert!(!armed(&said(|said| said.epoch = 4)), "of an earlier term");
    assert!(!armed(&said(|said| said.signs = Signs::default())));
    assert!(!armed(&|heard| heard.kind = Kind::Standby));
    assert!(!armed(&|heard| heard.said = None));
    assert!(!armed(&|heard| heard.source = STRANGER));
}

#[test]
fn a_node_that_could_not_serve_is_not_armed_and_lays_a_grant_down() {
    for input in [
        Input::HealthChanged(FIT.without(Health::DATAPLANE)),
        Input::HealthChanged(FIT.without(Health::LEGS)),
        Input::PeerLegsKnown(false),
        Input::Reconfigured(Settings {
            stance: Stance::Maintenance,
            ..authenticated()
        }),
    ] {
        let mut bench = fit_standby(authenticated());
        let arms = sign(&bench, Kind::Owner, Freshness::Proved, Signs::ARMS);
        bench.give(Input::Received(arms));
        assert_eq!(bench.words(), ["arm", "speak"]);
        bench.give(input);
        let arms = sign(&bench, Kind::Owner, Freshness::Proved, Signs::ARMS);
        bench.give(Input::Received(arms));
        assert_eq!(bench.words(), ["disarm", "speak"], "{input:?}");
    }
}

#[test]
fn an_armed_node_never_owns_before_a_proved_release_or_the_wait_and_is_armed_no_longer_then() {
    let mut bench = fit_standby(authenticated());
    let arms = sign(&bench, Kind::Owner, Freshness::Proved, Signs::ARMS);
    bench.give(Input::Received(arms));
    let Output::Arm { until } = bench.take()[0] else {
        panic!("not armed")
    };
    assert_eq!(until, bench.now.plus(GRANT_NANOS));
    assert!(bench.machine.signs(bench.now).has(Signs::ARMED));
    // The grant ends by itself; the wait for a dead owner is as long as ever.
    bench.pass(WAIT - 1);
    assert_eq!(bench.machine.role(), Role::Standby);
    assert!(!bench.machine.signs(bench.now).has(Signs::ARMED));
    bench.pass(1);
    assert_eq!(bench.machine.role(), Role::Active);
    let mut bench = fit_standby(authenticated());
    for kind in [Kind::Owner, Kind::Release] {
        let heard = word(&bench, kind, Freshness::Proved, 5);
        let heard = PairMessage {
            said: heard.said.map(|said| Said {
                signs: Signs::ARMS,
                health: FIT,
                ..said
            }),
            ..heard
        };
        bench.give(Input::Received(heard));
    }
    assert_eq!(bench.words(), ["arm", "speak"], "a release arms nobody");
    bench.pass(0);
    assert_eq!(
        bench.words(),
        [
            "active PeerReleased",
            "send Owner 150",
            "renew",
            "disarm",
            "announce"
        ],
        "the lease comes before the grant goes"
    );
}

#[test]
fn the_owner_yields_only_to_an_answer_to_what_it_said_while_arming() {
    let mut bench = fit_active();
    bench.give(Input::HandOverOrdered { force: false });
    assert_eq!(bench.words(), ["speak"]);
    bench.now = bench.now.plus(3 * MS);
    let mut earlier = sign(&bench, Kind::Standby, Freshness::Proved, Signs::ARMED);
    earlier.said.as_mut().unwrap().unheard_nanos = 4 * MS;
    bench.give(Input::Received(earlier));
    bench.give(Input::Received(sign(
        &bench,
        Kind::Standby,
        Freshness::Known,
        Signs::ARMED,
    )));
    assert!(bench.words().is_empty(), "of an earlier hand-over, or not proved");
    let mut armed = earlier;
    armed.said.as_mut().unwrap().unheard_nanos = 2 * MS;
    bench.give(Input::Received(armed));
    assert_eq!(bench.words(), ["relay", "yield true"]);
    // Silence from now on: it makes flows itself again long before the grant ends, and gives up in the end.
    bench.pass(29 * MS);
    assert!(
        bench
            .words()
            .iter()
            .all(|word| ["speak", "renew", "send Owner 150"].contains(&&**word))
    );
    bench.pass(MS);
    assert_eq!(
        bench.words(),
        [
            "flush 1",
            "relay",
            "clear",
            "hush",
            "send Release 0",
            "standby HandOver"
        ]
    );
}

#[test]
fn an_owner_without_answer_stays_unless_it_is_to_end() {
    for (input, stays) in [
        (Input::HandOverOrdered { force: false }, true),
        (Input::StopOrdered, false),
        (Input::MainFellSilent, true),
    ] {
        let mut bench = fit_active();
        bench.give(input);
        bench.pass(199 * MS);
        assert_eq!(bench.machine.role(), Role::Active, "{input:?}");
        bench.pass(MS);
        assert_eq!(bench.machine.role() == Role::Active, stays, "{input:?}");
        assert_eq!(bench.words().contains(&"refuse NoAnswer".to_owned()), stays);
    }
}

#[test]
fn a_second_stop_is_carried_out_at_once_and_an_order_during_an_order_changes_nothing() {
    let mut bench = fit_active();
    bench.give(Input::HandOverOrdered { force: false });
    bench.give(Input::HandOverOrdered { force: false });
    assert_eq!(bench.words(), ["speak"]);
    bench.give(Input::StopOrdered);
    assert_eq!(bench.machine.role(), Role::Active);
    bench.give(Input::StopOrdered);
    assert_eq!(bench.machine.role(), Role::Initialize);
}
