//! Paths between the nodes on which something is lost while the peer is heard on another: named with what to let through. Pure.

use onearm_ha::driver::PathView;
use onearm_ha::election::{ElectionStatus, Role};
use onearm_ha::process::HaState;
use onearm_ha::units::MonoTime;

/// Least silence of one path that is told. Nanoseconds.
const PATIENCE_NANOS: u64 = 2_000_000_000;
/// The peer was heard on another path since. Nanoseconds.
const RECENT_NANOS: u64 = 500_000_000;

/// What is lost where; nothing while the peer is heard nowhere, for then it may be gone. `leg`: interface of the adverts;
/// `port`: of HA datagrams.
pub(crate) fn sentences(state: &HaState, leg: &str, port: u16) -> Vec<String> {
    let Some(election) = &state.election else {
        return Vec::new();
    };
    let mut sentences: Vec<String> = state
        .paths
        .iter()
        .filter_map(|path| not_sent(path, port))
        .collect();
    if election.send_failing && state.leg_fault.is_none() {
        sentences.push(format!(
            "adverts cannot be sent on {leg}: let IP protocol 112 through every packet filter of this node (nft hook egress, tc)"
        ));
    }
    let heard = state.paths.iter().filter_map(|path| path.heard_at);
    let last = heard.chain(state.advert_heard_at).max();
    if last.is_none_or(|last| state.at.since(last) > RECENT_NANOS) {
        return sentences;
    }
    let since = state.peer_voice.map_or(state.at, |voice| voice.since);
    sentences.extend(not_heard(state, election, leg, port, since));
    sentences
}

fn not_sent(path: &PathView, port: u16) -> Option<String> {
    let ifname = &path.ifname;
    match path.refused? {
        libc::EPERM | libc::EACCES => Some(format!(
            "a packet filter of this node drops the HA datagrams it sends on {ifname}: let UDP port {port} out there (nft hook output)"
        )),
        number => Some(format!(
            "HA datagrams cannot be sent on {ifname}: {}",
            nix::errno::Errno::from_raw(number).desc()
        )),
    }
}

/// Paths that are silent although the peer has spoken since `since`.
fn not_heard(
    state: &HaState,
    election: &ElectionStatus,
    leg: &str,
    port: u16,
    since: MonoTime,
) -> Vec<String> {
    let patience = PATIENCE_NANOS.max(election.learned_interval_nanos.saturating_mul(10));
    let is_silent = |heard: Option<MonoTime>| state.at.since(heard.unwrap_or(since).max(since)) > patience;
    let mut sentences = Vec::new();
    for path in state.paths.iter().filter(|path| is_silent(path.heard_at)) {
        let ifname = &path.ifname;
        sentences.push(format!(
            "HA datagrams of the peer do not arrive on {ifname}, though it is heard otherwise: look at the cable, and let UDP port {port} \
             through on {ifname} of both nodes (nft hooks input and output; etc/examples/nftables.conf)"
        ));
    }
    let expects_adverts = election.role == Role::Standby && election.peer_owns;
    if expects_adverts && is_silent(state.advert_heard_at) {
        sentences.push(format!(
            "adverts of the peer do not arrive on {leg}, though it is heard otherwise and owns the addresses: let IP protocol 112 through \
             every packet filter and switch between the nodes"
        ));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::sentences;
    use onearm_ha::announce::AnnounceCounters;
    use onearm_ha::auth::{Health, KeyId};
    use onearm_ha::driver::{DriverCounters, Grants, PathView, PeerVoice, VoiceCounters, WireCounters};
    use onearm_ha::election::{ElectionCounters, ElectionStatus, Role};
    use onearm_ha::process::HaState;
    use onearm_ha::units::{MonoTime, Priority};

    fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(1_000_000_000_000 + ms * 1_000_000)
    }

    fn path(ifname: &str, heard_ms: Option<u64>) -> PathView {
        PathView {
            ifname: ifname.to_owned(),
            refused: None,
            heard_at: heard_ms.map(at),
        }
    }

    /// A Standby at 10 s that has heard the peer since 0 s, adverts last at `advert_ms`.
    fn standby(paths: Vec<PathView>, advert_ms: Option<u64>) -> HaState {
        HaState {
            at: at(10_000),
            election: Some(ElectionStatus {
                role: Role::Standby,
                since: at(0),
                leg_fault: None,
                main_silent: false,
                send_failing: false,
                priority: Priority::configured(100).unwrap(),
                peer_priority: None,
                peer_owns: true,
                peer_heard_at: None,
                learned_interval_nanos: 100_000_000,
                lease_deadline: MonoTime::ZERO,
                epoch: 1,
                contention: None,
                health: Health::default(),
                peer_health: None,
                stance: onearm_ha::election::Stance::Normal,
                peer_stance: None,
                waits_since: None,
            }),
            election_counters: ElectionCounters::default(),
            announce_counters: AnnounceCounters::default(),
            wire_counters: WireCounters::default(),
            driver_counters: DriverCounters::default(),
            mac: None,
            leg_fault: None,
            other_faults: Vec::new(),
            last_word: None,
            peer_voice: Some(PeerVoice {
                newest_key: KeyId(1),
                since: at(0),
                heard_at: at(9_990),
            }),
            paths,
            advert_heard_at: advert_ms.map(at),
            voice_counters: VoiceCounters::default(),
            peer_mac: None,
            owned: 1,
            grants: Grants::default(),
            term: None,
            held: 0,
        }
    }

    fn told(state: &HaState) -> Vec<String> {
        sentences(state, "eth0", 8_471)
    }

    #[test]
    fn each_path_that_is_silent_alone_is_named_and_none_when_all_are() {
        let whole = standby(
            vec![path("eth0", Some(9_990)), path("eth1", Some(9_980))],
            Some(9_950),
        );
        assert_eq!(told(&whole), [] as [String; 0]);
        for heard in [None, Some(7_000)] {
            let silent = standby(vec![path("eth0", Some(9_990)), path("eth1", heard)], Some(9_950));
            let told = told(&silent);
            assert_eq!(told.len(), 1);
            assert!(
                told[0].contains("do not arrive on eth1") && told[0].contains("UDP port 8471"),
                "{told:?}"
            );
        }
        let late = standby(
            vec![path("eth0", Some(9_990)), path("eth1", Some(9_000))],
            Some(9_950),
        );
        assert_eq!(told(&late), [] as [String; 0], "a moment's silence");
        let gone = standby(vec![path("eth0", Some(5_000)), path("eth1", None)], Some(5_000));
        assert_eq!(told(&gone), [] as [String; 0]);
    }

    #[test]
    fn adverts_that_are_lost_alone_are_named() {
        let mut lost = standby(vec![path("eth0", Some(9_990))], Some(6_000));
        let words = told(&lost);
        assert!(
            words[0].contains("adverts") && words[0].contains("IP protocol 112"),
            "{words:?}"
        );
        lost.election.as_mut().unwrap().peer_owns = false;
        assert_eq!(told(&lost), [] as [String; 0], "a Standby sends none");
    }

    #[test]
    fn what_the_node_itself_drops_is_named_at_once() {
        let mut state = standby(vec![path("eth0", None), path("eth1", None)], None);
        state.paths[1].refused = Some(libc::EPERM);
        state.paths[0].refused = Some(libc::ENETUNREACH);
        state.election.as_mut().unwrap().send_failing = true;
        let told = told(&state);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("eth0: Network is unreachable"), "{told:?}");
        assert!(
            told[1].contains("a packet filter of this node drops") && told[1].contains("eth1"),
            "{told:?}"
        );
        assert!(told[2].contains("adverts cannot be sent on eth0"), "{told:?}");
    }
}
