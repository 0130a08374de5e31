//! The HA process as a process: this test binary, started again.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::uio::{pread, pwrite};
use nix::unistd::Pid;
use onearm_ha::config::Config;
use onearm_ha::driver::{Exit, Grants, LeaseSink, now, run};
use onearm_ha::election::{Event, Role};
use onearm_ha::process::{FromHa, Guardian, HaEnd, MainEnd, ToHa, ToMain, owned_messages, spawn};

use crate::authenticated::with_auth;
use crate::lab::{A, B, Lab, VIP, wait_until};
use crate::node::{LONG, Node, PATIENCE, config, owned};

const CHILD: &str = "ONEARM_HA_TEST_CHILD";

/// A lease cell in a file without name, in place of a BPF map.
struct FileCell(OwnedFd);

impl LeaseSink for FileCell {
    fn write(&mut self, deadline_ns: u64) {
        pwrite(&self.0, &deadline_ns.to_ne_bytes(), 0).unwrap();
    }

    fn write_yielding(&mut self, deadline_ns: u64) {
        self.write(deadline_ns);
    }

    fn arm(&mut self, _until_ns: u64) {}

    fn relay(&mut self, _until_ns: u64) {}
}

impl FileCell {
    fn new() -> Self {
        let file = memfd_create("lease", MFdFlags::MFD_CLOEXEC).unwrap();
        let mut cell = Self(file);
        cell.write(0);
        cell
    }

    fn duplicate(&self) -> Self {
        Self(self.0.try_clone().unwrap())
    }

    fn holds(&self) -> bool {
        let mut bytes = [0; 8];
        pread(&self.0, &mut bytes, 0).unwrap();
        u64::from_ne_bytes(bytes) > now().as_nanos()
    }
}

/// Not a test: the body of the child, and nothing at all when run otherwise.
#[test]
fn child_body() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let grants = Grants::claim();
    let mut end = HaEnd::take().unwrap();
    let begin = end.begin(PATIENCE).unwrap();
    let exit = run(end, FileCell(begin.lease_map), grants, begin.links).unwrap();
    std::process::exit(match exit {
        Exit::Ordered => 10,
        Exit::MainEnded => 11,
    });
}

struct Process {
    child: Child,
    main: Arc<MainEnd>,
    cell: FileCell,
    over: Arc<AtomicBool>,
}

impl Process {
    fn start(lab: &Lab, space: &str, config: &Config) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = lab.command_in(space, program.to_str().unwrap());
        command
            .args([
                "--exact",
                "process::child_body",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(CHILD, "1")
            .stdout(Stdio::null());
        // The child's test harness has a thread that holds nothing back: the mask is inherited.
        let mut held = SigSet::empty();
        held.add(Signal::SIGTERM);
        held.add(Signal::SIGINT);
        held.thread_block().unwrap();
        let (child, main) = spawn(command).unwrap();
        held.thread_unblock().unwrap();
        let cell = FileCell::new();
        let link: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        main.hold(Some(cell.0.as_fd()), &[link.as_fd()], PATIENCE)
            .unwrap();
        for message in owned_messages(&[owned(VIP)]) {
            main.send(&message, PATIENCE).unwrap();
        }
        main.send(&ToHa::Configure(Box::new(config.clone())), PATIENCE)
            .unwrap();
        let (main, over) = (Arc::new(main), Arc::new(AtomicBool::new(false)));
        let (beater, stop) = (Arc::clone(&main), Arc::clone(&over));
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                beater.try_send(&ToHa::Heartbeat).ok();
                std::thread::park_timeout(Duration::from_millis(10));
            }
        });
        Self {
            child,
            main,
            cell,
            over,
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn next_state(&self) -> onearm_ha::process::HaState {
        loop {
            match self.main.receive(LONG).unwrap() {
                FromHa::Message(ToMain::State(state)) => return *state,
                FromHa::Message(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn wait_lease(&self) {
        // Keeps the queue empty meanwhile.
        wait_until("a lease", LONG, || {
            self.main.receive(Duration::ZERO).unwrap();
            self.cell.holds()
        });
    }

    /// Milliseconds of processor time all threads of the child have used.
    fn cpu_ms(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let of = |entry: std::io::Result<std::fs::DirEntry>| {
            let text = std::fs::read_to_string(entry.unwrap().path().join("schedstat")).unwrap();
            text.split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        tasks.map(of).sum::<u64>() / 1_000_000
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
#[ignore = "needs root"]
fn after_sigkill_of_the_ha_process_the_guardian_gives_up_in_its_place() {
    for (interval_ms, auth) in [(1_000, false), (10, false), (1_000, true)] {
        let lab = Lab::new();
        let of = move |address| {
            if auth {
                with_auth(address, interval_ms, false)
            } else {
                config(address, interval_ms)
            }
        };
        let a = Process::start(&lab, "a", &of(A));
        a.wait_lease();
        let b = Node::start(&lab, "b", &of(B));
        wait_until("B to hear A", LONG, || {
            b.notes
                .lock()
                .unwrap()
                .state
                .as_ref()
                .is_some_and(|s| s.election_counters.adverts_received > 2)
        });
        let mut guardian = lab
            .within("a", move || Guardian::prepare(&of(A)).unwrap())
            .join()
            .unwrap();
        let mut note = |message: &FromHa| {
            if let FromHa::Message(ToMain::State(state)) = message
                && let Some(spoken) = state.last_word
            {
                guardian.note(spoken);
            }
        };
        loop {
            match a.main.receive(Duration::ZERO).unwrap() {
                FromHa::Nothing => break,
                message => note(&message),
            }
        }

        let killed = now();
        a.signal(Signal::SIGKILL);
        loop {
            match a.main.receive(LONG).unwrap() {
                FromHa::Ended => break,
                FromHa::Nothing => panic!("the end was not seen"),
                message @ FromHa::Message(_) => note(&message),
            }
        }
        let seen = now();
        // The socket lives in A's namespace; only the reading of the MAC needs the thread to be there.
        let mut cell = a.cell.duplicate();
        let acted = lab.within("a", move || {
            let begun = now();
            guardian.act(&mut cell).unwrap();
            now().since(begun)
        });
        let acted = acted.join().unwrap();
        assert!(!a.cell.holds());
        b.wait_role(Role::Active);
        let since = b.state().election.unwrap().since;
        println!(
            "{interval_ms} ms adverts, authenticated {auth}, SIGKILL: end seen after {} µs, guardian took {} µs, B Active after {} µs",
            seen.since(killed) / 1_000,
            acted / 1_000,
            since.since(killed) / 1_000
        );
        // At 10 ms a stall of this machine may be longer than the silence that makes B claim anyway.
        if interval_ms == 1_000 {
            let event = b.notes.lock().unwrap().transitions.last().unwrap().event;
            assert_eq!(event, Event::PeerReleased);
            assert!(since.since(killed) <= 500_000_000);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn a_stopped_and_resumed_ha_process_never_makes_a_second_owner() {
    let lab = Lab::new();
    let a = Process::start(&lab, "a", &config(A, 10));
    a.wait_lease();
    let b = Node::start(&lab, "b", &config(B, 10));
    wait_until("B to hear A", LONG, || {
        b.notes
            .lock()
            .unwrap()
            .state
            .as_ref()
            .is_some_and(|s| s.election_counters.adverts_received > 2)
    });
    for _ in 0..5 {
        a.signal(Signal::SIGSTOP);
        let took = wait_until("B to own", LONG, || {
            assert!(!(a.cell.holds() && b.cell.holds()), "two owners");
            b.cell.holds()
        });
        println!("SIGSTOP: lease of B after {took} ms");
        a.signal(Signal::SIGCONT);
        // For half a second both cells are read as fast as it goes.
        let resumed = now();
        while now().since(resumed) < 500_000_000 {
            assert!(!(a.cell.holds() && b.cell.holds()), "two owners");
        }
        while a.main.receive(Duration::ZERO).unwrap() != FromHa::Nothing {}
        let owner_is_b = b.cell.holds();
        assert!(owner_is_b || a.cell.holds(), "nobody owns");
        if owner_is_b {
            b.order(&ToHa::HandOver { force: false });
            a.wait_lease();
        }
        b.wait_role(Role::Standby);
    }
}

#[test]
#[ignore = "needs root"]
fn the_ha_process_outlives_sigterm_and_ends_when_ordered_or_orphaned() {
    let lab = Lab::new();
    let mut a = Process::start(&lab, "a", &config(A, 100));
    a.wait_lease();
    a.signal(Signal::SIGTERM);
    a.signal(Signal::SIGINT);
    let state = a.next_state();
    println!("granted: {:?}", state.grants);
    assert!(state.grants.no_core_dump && state.grants.signals_held);
    assert_eq!(state.held, 1);
    assert!(a.cell.holds());
    let status = std::fs::read_dir(format!("/proc/{}/fd", a.child.id())).unwrap();
    let mut descriptors: Vec<(i32, String)> = status
        .map(|entry| {
            let entry = entry.unwrap();
            let target = std::fs::read_link(entry.path()).unwrap().display().to_string();
            (entry.file_name().to_str().unwrap().parse().unwrap(), target)
        })
        .collect();
    descriptors.sort();
    let (highest, target) = descriptors.last().unwrap();
    assert!(target.starts_with("socket:") && *highest > 100, "{descriptors:?}");
    a.main.send(&ToHa::Stop, PATIENCE).unwrap();
    assert_eq!(a.child.wait().unwrap().code(), Some(10));

    let mut a = Process::start(&lab, "a", &config(A, 100));
    a.wait_lease();
    a.over.store(true, Ordering::SeqCst);
    let cell = a.cell.duplicate();
    // The last holder of the main end goes.
    let main = Arc::clone(&a.main);
    let number = main.as_fd().as_raw_fd();
    drop(main);
    wait_until("the heartbeats to end", LONG, || Arc::strong_count(&a.main) == 1);
    let (unused, _peer) = onearm_ha::process::pair().unwrap();
    a.main = Arc::new(unused);
    assert!(std::fs::read_link(format!("/proc/self/fd/{number}")).is_err());
    assert_eq!(a.child.wait().unwrap().code(), Some(11));
    assert!(!cell.holds());
}

#[test]
#[ignore = "needs root"]
fn at_10_ms_adverts_the_process_uses_at_most_two_hundredths_of_a_core() {
    let lab = Lab::new();
    let a = Process::start(&lab, "a", &config(A, 10));
    a.wait_lease();
    let (begun, used) = (now(), a.cpu_ms());
    let mut state = a.next_state();
    let adverts = state.election_counters.adverts_sent;
    while now().since(begun) < 5_000_000_000 {
        state = a.next_state();
    }
    let seconds = now().since(begun) / 1_000_000_000;
    let used = a.cpu_ms() - used;
    println!(
        "{} adverts, {} turns in {seconds} s, {used} ms of processor time, longest gap {} µs, granted {:?}",
        state.election_counters.adverts_sent - adverts,
        state.driver_counters.turns,
        state.driver_counters.longest_gap_nanos / 1_000,
        state.grants
    );
    // Unoptimised code takes its time; the two hundredths are those of the product.
    let allowed = if cfg!(debug_assertions) { 80 } else { 20 };
    assert!(used <= seconds * allowed, "{used} ms in {seconds} s");
}

#[test]
fn a_begin_without_descriptors_is_refused() {
    let (main, mut ha) = onearm_ha::process::pair().unwrap();
    main.send(&ToHa::Heartbeat, PATIENCE).unwrap();
    let none = ha.begin(Duration::from_millis(20)).unwrap_err();
    assert!(none.to_string().starts_with("no descriptors"), "{none}");
}
