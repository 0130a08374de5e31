//! Programs of the operator's, run for real: what each of them can and cannot do.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onearm::script::{Account, Ended, How, OUTPUT_BYTES, Run, run};

const NOBODY: u32 = 65_534;

/// A folder that root alone can change, below one that is not `/tmp`.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root");
        let place = Self(tempfile::tempdir_in("/var/lib").expect("a folder"));
        // The programs' user reads it.
        set_mode(place.0.path(), 0o755);
        place
    }

    /// A folder that the program may write to.
    fn open(&self) -> PathBuf {
        let path = self.0.path().join("open");
        fs::create_dir(&path).expect("made");
        set_mode(&path, 0o777);
        path
    }

    fn program(&self, text: &str) -> PathBuf {
        let path = self.0.path().join("program");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        set_mode(&path, 0o755);
        path
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
}

fn wanted(path: &Path, limit_ms: u64) -> Run {
    Run {
        command: vec![
            path.display().to_string(),
            "one two".to_owned(),
            "$HOME".to_owned(),
        ],
        account: Account {
            name: "nobody".to_owned(),
            user: NOBODY,
            group: NOBODY,
        },
        environment: vec![("ONEARM_STATE".to_owned(), "active".to_owned())],
        limit: Duration::from_millis(limit_ms),
    }
}

fn ran(path: &Path, limit_ms: u64) -> Ended {
    ended(&wanted(path, limit_ms), &AtomicBool::new(false))
}

fn ended(wanted: &Run, stop: &AtomicBool) -> Ended {
    let mut said = None;
    let shim = Path::new(env!("CARGO_BIN_EXE_onearmd"));
    run(shim, wanted, stop, |ended| said = Some(ended));
    said.expect("a report")
}

fn said(text: &str) -> String {
    let place = Place::new();
    let ended = ran(&place.program(text), 20_000);
    assert_eq!(ended.how, How::Exited(0), "{ended}");
    ended.output
}

/// Whether a process is there and no zombie.
fn lives(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// A signal is on its way for a moment.
fn has_gone(pid: &str) -> bool {
    comes(|| !lives(pid))
}

fn comes(mut true_now: impl FnMut() -> bool) -> bool {
    (0..1_000).any(|_| {
        nix::poll::poll(&mut [], 10_u8).expect("a pause");
        true_now()
    })
}

#[test]
#[ignore = "needs root"]
fn it_is_somebody_without_rights_in_a_session_of_its_own_and_in_the_root_folder() {
    let text =
        said("cat /proc/self/status; echo; cat /proc/self/limits; pwd; cat /proc/self/oom_score_adj; umask");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for wanted in [
        "Uid: 65534 65534 65534 65534",
        "Gid: 65534 65534 65534 65534",
        "Groups: NStgid",
        "CapInh: 0000000000000000",
        "CapPrm: 0000000000000000",
        "CapEff: 0000000000000000",
        "CapBnd: 0000000000000000",
        "CapAmb: 0000000000000000",
        "NoNewPrivs: 1",
        "SigBlk: 0000000000000000",
    ] {
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
    let text = said(
        "cat /proc/self/stat; cat /proc/self/limits | grep -i -e realtime -e core -e nice -e processes; pwd; cat /proc/self/oom_score_adj; umask; id",
    );
    let words: Vec<&str> = text.split_whitespace().collect();
    // Of the child of the shell: parent, group, session are all the shell's, which is the program.
    assert_eq!(
        (words[3], words[4]),
        (words[4], words[5]),
        "a session of its own: {text}"
    );
    assert!(
        text.contains("Max core file size 0 0 bytes") || text.contains("Max core file size        0"),
        "{text}"
    );
    let processes = text.find("Max processes").expect("a limit");
    assert!(
        text[processes..].split_whitespace().nth(3) == Some("256"),
        "{text}"
    );
    let realtime = text.find("Max realtime priority").expect("a limit");
    assert!(text[realtime..].split_whitespace().nth(3) == Some("0"), "{text}");
    assert!(
        text.contains(" / 0 0022 ") || text.replace("  ", " ").contains("/ 0 0022"),
        "{text}"
    );
    assert!(text.contains("uid=65534"), "{text}");
}

#[test]
#[ignore = "needs root"]
fn it_has_its_arguments_the_documented_environment_and_nothing_else() {
    let text = said("for a in \"$@\"; do echo \"[$a]\"; done; tr '\\0' ' ' < /proc/$$/environ");
    assert_eq!(
        text.trim(),
        "[one two] [$HOME] ONEARM_STATE=active",
        "no shell reads the command"
    );
}

#[test]
#[ignore = "needs root"]
fn no_descriptor_of_the_daemon_is_open_in_it_not_even_one_that_is_inherited() {
    // Neither closed on exec nor a standard one.
    let null = fs::File::open("/dev/null").expect("opened");
    let inherited = nix::unistd::dup(&null).expect("a copy");
    let flags = nix::fcntl::fcntl(&inherited, nix::fcntl::FcntlArg::F_GETFD).expect("flags");
    assert_eq!(flags, 0, "it is inherited");
    let text = said("ls /proc/$$/fd; readlink /proc/$$/fd/0");
    // 10 or so: the shell's own, of the program's text.
    let open: Vec<&str> = text.split_whitespace().filter(|word| word.len() == 1).collect();
    assert_eq!(open, ["0", "1", "2"], "{text}");
    assert!(text.contains("/dev/null"));
    assert!(!text.contains(" 3 "));
}

#[test]
#[ignore = "needs root"]
fn exit_codes_signals_and_output_are_told() {
    let place = Place::new();
    let ended = ran(&place.program("echo out; echo err >&2; exit 7"), 20_000);
    assert_eq!((ended.how.clone(), &*ended.output), (How::Exited(7), "out err "));
    assert_eq!(ended.to_string(), "exit code 7: out err");
    assert_eq!(ran(&place.program("kill -9 $$"), 20_000).how, How::Killed(9));
    let path = place.0.path().join("program");
    fs::write(&path, "#!/no/such/interpreter\n").expect("written");
    let ended = ran(&path, 20_000);
    assert!(
        matches!(&ended.how, How::NotStarted(why) if why.contains("cannot be run")),
        "{ended}"
    );
}

#[test]
#[ignore = "needs root"]
fn one_that_hangs_is_ended_and_one_that_will_not_hear_of_it_is_killed() {
    let place = Place::new();
    let limit = How::TimedOut(Duration::from_millis(200));
    let ended = ran(&place.program("echo $$; exec sleep 1000"), 200);
    assert_eq!(ended.how, limit);
    assert!(has_gone(&ended.output));
    let ended = ran(
        &place.program("trap '' TERM; echo $$; while :; do sleep 1000; done"),
        200,
    );
    assert_eq!(ended.how, limit);
    assert!(has_gone(&ended.output));
}

#[test]
#[ignore = "needs root"]
fn what_it_leaves_running_is_ended_with_it() {
    let place = Place::new();
    let ended = ran(&place.program("sleep 1000 & echo $!"), 20_000);
    assert_eq!(
        ended.how,
        How::Exited(0),
        "the output it keeps open is not waited for"
    );
    assert!(has_gone(&ended.output));
    let ended = ran(
        &place.program("(trap '' TERM HUP; sleep 1000 & echo $!; wait) & sleep 1000"),
        200,
    );
    assert!(matches!(ended.how, How::TimedOut(_)));
    assert!(has_gone(&ended.output));
}

#[test]
#[ignore = "needs root"]
fn one_that_closes_its_output_and_sleeps_is_still_waited_for() {
    let place = Place::new();
    let ended = ran(&place.program("exec >&- 2>&-; sleep 0.3; exit 3"), 20_000);
    assert_eq!(ended.how, How::Exited(3));
}

#[test]
#[ignore = "needs root"]
fn a_flood_of_output_is_cut_and_then_nobody_reads_it() {
    let place = Place::new();
    let ended = ran(&place.program("yes 0123456789; exit 9"), 20_000);
    assert_eq!((ended.output.len(), ended.cut), (OUTPUT_BYTES, true));
    assert_eq!(ended.how, How::Exited(9), "it got an error, and went on");
    let ended = ran(&place.program("printf 'a\\033[31mb\\nc'"), 20_000);
    assert_eq!(ended.output, "a [31mb c", "no control characters");
}

#[test]
#[ignore = "needs root"]
fn one_that_cannot_be_killed_is_told_about_in_time_and_waited_for() {
    let place = Place::new();
    let open = place.open();
    let (began, end) = (open.join("began"), open.join("end"));
    let path = place.program(&format!(
        "trap '' TERM; echo $$ > {}; while [ ! -e {} ]; do sleep 0.05; done",
        began.display(),
        end.display()
    ));
    let (told, heard) = std::sync::mpsc::channel();
    let running = std::thread::spawn(move || {
        // As a daemon with CAP_SETUID and no CAP_KILL.
        let mut sets = rustix::thread::capabilities(None).expect("sets");
        sets.effective.remove(rustix::thread::CapabilitySet::KILL);
        rustix::thread::set_capabilities(None, sets).expect("given up");
        let shim = Path::new(env!("CARGO_BIN_EXE_onearmd"));
        run(shim, &wanted(&path, 2_000), &AtomicBool::new(false), |ended| {
            told.send(ended).expect("heard");
        });
    });
    let ended = heard.recv_timeout(Duration::from_mins(1)).expect("a report");
    let pid = fs::read_to_string(&began).expect("it began");
    assert_eq!(ended.how, How::Stuck, "{ended}");
    assert!(!ended.is_good());
    assert!(lives(&pid) && !running.is_finished());
    fs::write(&end, "").expect("written");
    running.join().expect("no panic");
    assert!(!lives(&pid));
    assert!(heard.recv().is_err(), "one report");
}

#[test]
#[ignore = "needs root"]
fn a_daemon_that_stops_ends_it_at_once() {
    let place = Place::new();
    let began = place.open().join("began");
    let path = place.program(&format!(
        "trap '' TERM; echo $$ > {}; while :; do sleep 1000; done",
        began.display()
    ));
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let (report, reported) = std::sync::mpsc::channel();
    std::thread::spawn(move || report.send(ended(&wanted(&path, 100_000), &told)));
    let mut pid = String::new();
    assert!(comes(|| {
        pid = fs::read_to_string(&began).unwrap_or_default();
        pid.ends_with('\n')
    }));
    stop.store(true, Ordering::Relaxed);
    let in_time = reported.recv_timeout(Duration::from_secs(20));
    let ended = in_time.expect("long before its limit");
    assert_eq!(ended.how, How::Stopped);
    assert!(has_gone(&pid));
}

#[test]
#[ignore = "needs root"]
fn a_program_that_was_swapped_since_the_file_was_read_is_not_run() {
    let place = Place::new();
    let path = place.program("echo run");
    assert_eq!(ran(&path, 20_000).how, How::Exited(0));
    let not_run = |why: &str| {
        let ended = ran(&path, 20_000);
        assert!(
            matches!(&ended.how, How::NotStarted(text) if text.contains(why)),
            "{ended}"
        );
    };
    set_mode(place.0.path(), 0o777);
    not_run("others than root may write");
    set_mode(place.0.path(), 0o755);
    chown(&path, Some(NOBODY), None).expect("given away");
    not_run("belongs to user 65534");
    fs::remove_file(&path).expect("removed");
    std::os::unix::fs::symlink("/bin/true", &path).expect("a link");
    not_run("is a symbolic link");
    fs::remove_file(&path).expect("removed");
    not_run("No such file");
}

#[test]
#[ignore = "needs root"]
fn a_program_is_never_run_as_root() {
    let place = Place::new();
    let path = place.program("id");
    let mut wanted = wanted(&path, 20_000);
    wanted.account.user = 0;
    let ended = ended(&wanted, &AtomicBool::new(false));
    assert!(
        matches!(&ended.how, How::NotStarted(why) if why.contains("never runs as root")),
        "{ended}"
    );
    let refused = |name, daemon, daemons, control, why: &str| {
        let refused = Account::find(name, daemon, daemons, control).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    };
    refused("root", 1, 1, None, "is root");
    refused("nobody", NOBODY, 1, None, "own user");
    refused("no-such-user", 1, 1, None, "there is no user");
    refused("nobody", 1, NOBODY, None, "the group of nobody is the daemon's");
    refused(
        "nobody",
        1,
        1,
        Some("nogroup"),
        "the group of nobody is that of the control socket",
    );
    assert_eq!(
        Account::find("nobody", 1, 1, Some("adm")).expect("there").user,
        NOBODY
    );
}

#[test]
#[ignore = "needs root"]
fn a_daemon_that_is_not_root_needs_three_capabilities_and_passes_none_of_them_on() {
    let place = Place::new();
    let path = place.program("grep -e ^Cap -e NoNew /proc/self/status; id -u");
    let as_daemon = |capabilities: &str| {
        std::process::Command::new("setpriv")
            .args(["--reuid=2", "--regid=2", "--clear-groups"])
            .args(["--inh-caps", "--ambient-caps"].map(|set| format!("{set}=-all{capabilities}")))
            .args([env!("CARGO_BIN_EXE_onearmd"), "--as-script", "65534", "65534"])
            .arg(&path)
            .output()
            .expect("setpriv runs")
    };
    let ran = as_daemon(",+setuid,+setgid,+kill");
    let text = String::from_utf8_lossy(&ran.stdout).replace('\t', " ");
    assert!(ran.status.success(), "{ran:?}");
    for wanted in [
        "CapInh: 0000000000000000",
        "CapPrm: 0000000000000000",
        "CapEff: 0000000000000000",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(
        text.contains("CapAmb: 0000000000000000") && text.contains("NoNewPrivs: 1"),
        "{text}"
    );
    assert!(text.ends_with("65534\n"), "{text}");
    let refused = as_daemon("");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125));
    assert!(text.contains("CAP_SETUID and CAP_SETGID are missing"), "{text}");
}
