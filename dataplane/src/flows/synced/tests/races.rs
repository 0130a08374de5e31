//! Against a plain model; beside programs; and when the process is killed.
#![expect(
    unsafe_code,
    reason = "a process of its own; the table as programs see it, which cannot be killed"
)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use proptest::prelude::*;

use super::*;
use crate::flows::killed::Program;

/// What a flow of few clients may be.
#[derive(Clone, Copy, Debug)]
struct Which {
    client: u16,
    source: u16,
    state: u8,
    epoch: u64,
    node: u64,
    v6: bool,
}

impl Which {
    fn record(self) -> Record {
        let mut record = record(self.v6, self.client, 80);
        record.new_sport = (30_000 + self.source).to_be();
        record.incarnation = self.node << 56 | self.epoch << 40 | (u64::from(self.client) + 1);
        match self.state {
            0 => record.client = seen::OPENED,
            1 => {}
            _ => record.server |= seen::RST,
        }
        record
    }
}

fn which() -> impl Strategy<Value = Which> {
    (0_u16..6, 0_u16..4, 0_u8..3, 1_u64..4, 1_u64..3, any::<bool>()).prop_map(
        |(client, source, state, epoch, node, v6)| Which {
            client,
            source,
            state,
            epoch,
            node,
            v6,
        },
    )
}

#[derive(Clone, Debug)]
enum Op {
    Put(Which),
    Make(Which),
    End(Which),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => which().prop_map(|mut which| {
            which.state = which.state.max(1);
            Op::Put(which)
        }),
        2 => which().prop_map(Op::Make),
        1 => which().prop_map(Op::End),
    ]
}

/// 2 = established, 1 = closing, 0 = half-open.
fn rank(record: &Record) -> u8 {
    match record.coarse() {
        Some(Coarse::Established) => 2,
        Some(Coarse::Closing) => 1,
        None => 0,
    }
}

/// The rules in a table of their own.
fn judged(told: &Record, here: &Record) -> Result<(), Refused> {
    let age = |r: &Record| (r.incarnation << 8 >> 8, r.incarnation >> 56);
    if told.incarnation == here.incarnation || rank(told) == 2 && rank(here) < 2 {
        return Ok(());
    }
    if rank(told) != rank(here) {
        return Err(Refused::LiveHere);
    }
    if age(told) > age(here) {
        Ok(())
    } else {
        Err(Refused::Older)
    }
}

fn meets(one: &Record, other: &Record) -> bool {
    one.reply_key() == other.reply_key()
}

/// What [`Table::put`] should do to a list of flows.
fn model_put(flows: &mut Vec<Record>, told: Record) -> Result<bool, Refused> {
    let by_key = flows.iter().position(|here| here.key == told.key);
    if let Some(at) = by_key
        && flows[at].incarnation == told.incarnation
        && meets(&flows[at], &told)
    {
        flows[at] = told;
        return Ok(false);
    }
    for here in by_key
        .map(|at| &flows[at])
        .into_iter()
        .chain(flows.iter().filter(|here| meets(here, &told)))
    {
        judged(&told, here)?;
    }
    flows.retain(|here| here.key != told.key && !meets(here, &told));
    flows.push(told);
    Ok(true)
}

/// Every flow of the table; panics unless each is whole and no way is left over.
fn flows_of(table: &FlowTable) -> Vec<Record> {
    let flows: Vec<Record> = table
        .forward_places(0..table.buckets())
        .map(|place| table.read(place).expect("both directions"))
        .collect();
    assert_eq!(ways(table), 2 * flows.len(), "one direction alone");
    flows
}

/// What tells two flows apart.
fn essence(record: &Record) -> (u64, bool, u16, u8, u8) {
    (
        record.incarnation,
        record.is_v6(),
        record.new_sport,
        record.client,
        record.server,
    )
}

proptest! {
    #[test]
    fn puts_ends_and_flows_of_programs_agree_with_a_naive_model(ops in prop::collection::vec(op(), 1..80)) {
        let table = table();
        let mut model: Vec<Record> = Vec::new();
        for op in ops {
            match op {
                Op::Put(which) => {
                    let told = which.record();
                    let before = model.len();
                    let want = model_put(&mut model, told);
                    let done = put(&table, &told);
                    prop_assert_eq!(done.map(|done| done.fresh), want);
                    if let Ok(done) = done {
                        let gone = done.displaced.iter().flatten().count();
                        prop_assert_eq!(before + usize::from(done.fresh) - gone, model.len());
                        prop_assert_eq!(table.read(done.place), Some(told));
                    }
                }
                Op::Make(which) => {
                    let made = which.record();
                    if !model.iter().any(|here| here.key == made.key || meets(here, &made)) {
                        make(&table, &made);
                        model.push(made);
                    }
                }
                Op::End(which) => {
                    let ended = which.record();
                    let of = |here: &Record| (here.key, here.incarnation) == (ended.key, ended.incarnation);
                    prop_assert_eq!(
                        table.end(&ended.key, ended.incarnation).is_some(),
                        model.iter().any(of)
                    );
                    model.retain(|here| !of(here));
                }
            }
            let have: BTreeSet<_> = flows_of(&table).iter().map(essence).collect();
            let want: BTreeSet<_> = model.iter().map(essence).collect();
            prop_assert_eq!(have, want);
            for v6 in [false, true] {
                let of_family = || model.iter().filter(|r| r.is_v6() == v6);
                let count = of_family().filter(|r| r.forward().state() != State::Closing).count() as u64;
                let (service, server, half_open) = open(&table, &record(v6, 0, 80));
                prop_assert_eq!((service, server), (count, count));
                let all = model.iter().filter(|r| r.forward().state() == State::HalfOpen).count() as u64;
                prop_assert_eq!(half_open, all);
            }
        }
    }
}

/// Flow number `n` of few clients and sources, each with another incarnation.
fn random(n: u64) -> Record {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let part = |shift: u32, of: u64| (mixed >> shift) % of;
    let small = |shift, of| u8::try_from(part(shift, of)).unwrap();
    let mut record = Which {
        client: small(0, 5).into(),
        source: small(8, 4).into(),
        state: 1 + small(16, 2),
        epoch: 1 + part(20, 3),
        node: 1 + part(24, 2),
        v6: false,
    }
    .record();
    record.incarnation += n << 8;
    record
}

#[test]
fn b54_puts_beside_programs_leave_whole_flows_and_one_for_each_key() {
    let table = table();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for owner in 1..3 {
            let (table, done) = (&table, &done);
            scope.spawn(move || {
                let program = Program(&table.memory);
                let mut n = owner << 40;
                while !done.load(Ordering::Relaxed) {
                    n += 1;
                    // As programs make flows: half-open, and newer than any that is told.
                    let made = Record {
                        client: seen::OPENED,
                        ..random(n)
                    };
                    let (forward, reply) = (made.forward(), made.reply());
                    let made = table::insert_pair::<Addr4, _>(&program, &table.four, owner, &forward, &reply);
                    if let Ok(at) = made
                        && n.is_multiple_of(2)
                    {
                        table::remove::<Addr4, _>(&program, &table.four, at, forward.incarnation);
                    }
                }
            });
        }
        let mut put_in = 0;
        for n in 0..60_000 {
            let told = random(n);
            match put(&table, &told) {
                Ok(done) => {
                    put_in += 1;
                    assert!(done.place.at >> 4 < table.four.buckets);
                }
                Err(Refused::Older | Refused::LiveHere | Refused::Contended) => {}
                Err(other) => panic!("{other:?}"),
            }
            if n % 3 == 0 {
                table.end(&told.key, told.incarnation);
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(put_in > 1_000, "{put_in}");
    });
    let flows = flows_of(&table);
    let keys: BTreeSet<_> = flows
        .iter()
        .map(|flow| (flow.key.saddr.0, flow.key.sport))
        .collect();
    let sources: BTreeSet<_> = flows.iter().map(|flow| flow.new_sport).collect();
    assert_eq!(
        (keys.len(), sources.len()),
        (flows.len(), flows.len()),
        "{flows:?}"
    );
}

#[test]
fn b44_a_process_killed_while_it_puts_and_ends_leaves_a_table_that_recovers() {
    for round in 0..60_u64 {
        let table = table();
        // Shared with the child, as all of the table is.
        let steps = |table: &FlowTable| table.tallies.sources.load(9, 0);
        // SAFETY: the child takes no lock that another thread may hold, allocates nothing, and is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            for n in 0.. {
                let told = random(round << 32 | n);
                if put(&table, &told).is_ok() && n % 3 == 0 {
                    table.end(&told.key, told.incarnation);
                }
                table.tallies.sources.add(9, 0, 1);
            }
        }
        assert!(child > 0);
        while steps(&table) < 50 + round * 13 {
            std::hint::spin_loop();
        }
        let child = Pid::from_raw(child);
        kill(child, Signal::SIGKILL).unwrap();
        waitpid(child, None).unwrap();
        table::recover::<Addr4, _>(&table.memory, &table.four);
        let flows = flows_of(&table);
        assert!(flows.len() <= 5, "{flows:?}");
        for told in flows {
            assert!(table.end(&told.key, told.incarnation).is_some());
        }
        assert_eq!(ways(&table), 0);
        assert!(put(&table, &random(round)).is_ok());
    }
}

#[test]
fn flows_are_put_and_read_while_what_is_in_force_changes_all_the_time() {
    let table = table();
    put(&table, &record(false, 1, 83)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    table.know(crate::sync::Directory::default());
                }
            });
        }
        let mut expiry = Expiry::new(Arc::clone(&table));
        for n in 0..1_000 {
            let told = random(n);
            if let Ok(done) = put(&table, &told) {
                table.read(done.place);
            }
            expiry.expire(at(NOW), 16, |_| ());
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(table.count().total() > 0);
}
