use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::IpNet;
use onearm_dataplane_common::maps::{
    self, Leg, LegKey, Limits, NeighbourKey, OwnedKey, Route, Server, Service, ServiceKey, SnatPool,
};
use onearm_dataplane_common::schedule::table_entry;
use onearm_types::GroupId;
use proptest::prelude::*;

use super::{Applied, Sink, Slots, apply, change};
use crate::error::{Error, Result};
use crate::identity::IndexSet;
use crate::next_hops::{self, LegSpec, Mirror, Neighbour, NextHops, RouteSpec, Via};
use crate::sched_space::Region;
use crate::tables::wide;
use crate::tables::{
    Entry, Hairpin, LimitsSpec, Mode, OnServerDown, OwnedAddress, OwnedKinds, Persistence, Protocol,
    Registry, Scheduler, ServerChange, ServerId, ServerNetwork, ServerSpec, ServiceSpec, SnatPoolSpec,
    SnatRangeSpec, Tables, TablesError, TunnelSpec,
};

const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 100));
const MOST_ENDPOINTS: u32 = 1_000;

fn server(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 168, 100, n))
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn id(n: u8) -> ServerId {
    ServerId {
        addr: server(n),
        port: 0,
    }
}

fn service(name: &str, port: u16, servers: &[u8]) -> ServiceSpec {
    ServiceSpec {
        name: name.to_owned(),
        vip: VIP,
        protocol: Protocol::Tcp,
        ports: vec![port..=port],
        mode: Mode::Dnat,
        scheduler: Scheduler::Wrr,
        hairpin: Hairpin::Auto,
        persistence: Persistence::default(),
        group: GroupId::FIRST,
        snat: vec![SnatPoolSpec {
            addr: VIP,
            first: 20_000,
            last: 39_999,
        }],
        idle_timeout: Duration::from_mins(15),
        mss_clamp: None,
        per_packet: false,
        limits: LimitsSpec::default(),
        on_server_down: OnServerDown::default(),
        sync_after: Some(Duration::ZERO),
        mode_for: Vec::new(),
        tunnel: TunnelSpec::default(),
        servers: servers
            .iter()
            .map(|n| ServerSpec {
                id: id(*n),
                weight: 1,
                up: true,
            })
            .collect(),
    }
}

fn tables(services: Vec<ServiceSpec>) -> Tables {
    let kinds = OwnedKinds {
        service: true,
        gateway: true,
        snat: true,
        orphan: false,
    };
    Tables {
        owned: vec![OwnedAddress {
            addr: VIP,
            kinds,
            leg: 0,
            group: GroupId::FIRST,
        }],
        services,
        server_networks: vec![ServerNetwork {
            network: net("192.168.100.0/24"),
            gateway: VIP,
        }],
        direct: vec![net("10.9.0.0/16")],
        connected: vec![net("192.168.100.0/24")],
        snat_ranges: vec![SnatRangeSpec {
            addr: VIP,
            first: 20_000,
            last: 59_999,
        }],
    }
}

/// The maps as a program sees them. Fails at the write numbered `fail_at`, and keeps what was written before.
#[derive(Default)]
struct Fake {
    keyed: Vec<Entry>,
    services: BTreeMap<u32, Service>,
    limits: BTreeMap<u32, Limits>,
    pools: BTreeMap<u32, SnatPool>,
    sched: BTreeMap<u32, u16>,
    servers: BTreeMap<u32, Server>,
    hops: BTreeMap<u32, [u64; 2]>,
    neighbours: Vec<(NeighbourKey, u32)>,
    slot: u32,
    graces: usize,
    writes: usize,
    fail_at: Option<usize>,
    stuck: bool,
}

impl Fake {
    fn step(&mut self) -> Result<()> {
        self.writes += 1;
        if self.fail_at == Some(self.writes) {
            let source = std::io::Error::from_raw_os_error(libc::ENOMEM);
            return Err(Error::Map { map: "FAKE", source });
        }
        Ok(())
    }

    /// What a packet for a port of the VIP would find: the service and the servers of its table.
    fn look_up(&self, port: u16) -> Option<(Service, Vec<IpAddr>)> {
        let slot = u8::try_from(self.slot).unwrap();
        let key = |key: &ServiceKey, bits: u32| {
            let shift = 160 - bits;
            key.slot == slot
                && key.addr == wide(VIP).bytes()
                && u16::from_be_bytes(key.port) >> shift == port.checked_shr(shift).unwrap_or(0)
        };
        let index = self.keyed.iter().find_map(|entry| match entry {
            Entry::Port(bits, k, index) if key(k, *bits) => Some(*index),
            _ => None,
        })?;
        let service = self.services[&(self.slot * maps::MAX_SERVICES + index)];
        let (base, len) = (service.table & 0xffff_ffff, service.table >> 32);
        let servers = (base..base + len).map(|entry| {
            let index = self.sched[&u32::try_from(entry).unwrap()];
            crate::tables::narrow(self.servers[&u32::from(index)].addr)
        });
        Some((service, servers.collect()))
    }

    fn slots_used(&self) -> [usize; 2] {
        let of = |slot| {
            self.keyed
                .iter()
                .filter(|entry| match entry {
                    Entry::Owned(key, _) | Entry::SnatRange(key, _) => key.slot == slot,
                    Entry::Port(_, key, _) => u32::from(key.slot) == slot,
                    Entry::Connected(_, key, _) | Entry::ServerNetwork(_, key, _) | Entry::Direct(_, key) => {
                        u32::from_be_bytes(key.scope) == slot
                    }
                    Entry::Hairpin(_, key) | Entry::Client(_, key, _) | Entry::ModeRule(_, key, _) => {
                        u32::from(key.scope[0]) == slot
                    }
                    Entry::Endpoint(key) => u32::from(key.slot) == slot,
                })
                .count()
        };
        [of(0), of(1)]
    }
}

impl Sink for Fake {
    fn insert(&mut self, entry: &Entry) -> Result<()> {
        self.step()?;
        assert!(!self.keyed.contains(entry), "{entry:?} written twice");
        self.keyed.push(*entry);
        Ok(())
    }
    fn remove(&mut self, entry: &Entry) -> Result<()> {
        self.step()?;
        if self.stuck {
            let source = std::io::Error::from_raw_os_error(libc::EBUSY);
            return Err(Error::Map { map: "FAKE", source });
        }
        self.keyed.retain(|e| e != entry);
        Ok(())
    }
    fn set_service(&mut self, slot: u32, index: u32, service: &Service) -> Result<()> {
        assert_ne!(slot, self.slot, "a service in force is written");
        self.step()?;
        self.services.insert(slot * maps::MAX_SERVICES + index, *service);
        Ok(())
    }
    fn set_service_table(&mut self, slot: u32, index: u32, table: u64) {
        self.services
            .get_mut(&(slot * maps::MAX_SERVICES + index))
            .unwrap()
            .table = table;
    }
    fn set_tunnel(&mut self, slot: u32, _index: u32, _tunnel: &maps::Tunnel) -> Result<()> {
        assert_ne!(slot, self.slot);
        self.step()
    }
    fn set_limits(&mut self, slot: u32, index: u32, limits: &Limits) -> Result<()> {
        assert_ne!(slot, self.slot);
        self.step()?;
        self.limits.insert(slot * maps::MAX_SERVICES + index, *limits);
        Ok(())
    }
    fn set_pool(&mut self, slot: u32, index: u32, pool: SnatPool) -> Result<()> {
        assert_ne!(slot, self.slot);
        self.step()?;
        self.pools.insert(slot * maps::MAX_SNAT_POOLS + index, pool);
        Ok(())
    }
    fn write_schedule(&mut self, region: Region, entries: &[u16]) {
        let base = u32::try_from(region.table() & 0xffff_ffff).unwrap();
        for (at, index) in (base..).zip(entries) {
            self.sched.insert(at, *index);
        }
    }
    fn set_server(&mut self, index: u32, server: &Server) {
        self.servers.insert(index, *server);
    }
    fn switch(&mut self, slot: u32) {
        self.slot = slot;
    }
    fn grace(&mut self) -> Result<()> {
        self.graces += 1;
        Ok(())
    }
}

impl next_hops::Sink for Fake {
    fn next_hop_word(&mut self, index: u32, word: usize, value: u64) {
        self.hops.entry(index).or_default()[word] = value;
    }
    fn set_neighbour(&mut self, key: NeighbourKey, index: u32) -> Result<()> {
        self.neighbours.push((key, index));
        Ok(())
    }
    fn remove_neighbour(&mut self, key: NeighbourKey) -> Result<()> {
        self.neighbours.retain(|(k, _)| *k != key);
        Ok(())
    }
    fn set_route(&mut self, _: IpNet, _: Route) -> Result<()> {
        Ok(())
    }
    fn remove_route(&mut self, _: IpNet) -> Result<()> {
        Ok(())
    }
    fn set_leg(&mut self, _: LegKey, _: Leg) -> Result<()> {
        Ok(())
    }
    fn remove_leg(&mut self, _: LegKey) -> Result<()> {
        Ok(())
    }
    fn set_port(&mut self, _: u8, _: u32) -> Result<()> {
        Ok(())
    }
    fn remove_port(&mut self, _: u8) -> Result<()> {
        Ok(())
    }
    fn repair_last_hops(&mut self, _: &dyn Fn(maps::LastHop) -> maps::LastHop) -> Result<usize> {
        Ok(0)
    }
}

struct Bench {
    registry: Registry,
    mirror: Mirror,
    slots: Slots,
    maps: Fake,
}

impl Bench {
    fn new() -> Self {
        Self {
            registry: Registry::new([1, 2]),
            mirror: Mirror::new(),
            slots: Slots::default(),
            maps: Fake::default(),
        }
    }

    fn apply(&mut self, tables: &Tables) -> Result<Applied> {
        let Self {
            registry,
            mirror,
            slots,
            maps,
        } = self;
        apply(registry, mirror, slots, maps, tables, MOST_ENDPOINTS)
    }

    fn change(&mut self, changes: &[ServerChange]) -> Result<()> {
        change(&mut self.registry, &mut self.slots, &mut self.maps, changes)
    }

    fn reclaim(&mut self, in_use: &IndexSet) -> usize {
        let (services, servers) = self.registry.reclaim(in_use, in_use);
        self.slots.forget_servers(&servers, &mut self.maps);
        services.len() + servers.len()
    }

    fn index(&self, service: &str, at: usize) -> u32 {
        self.registry.services()[service].servers[at]
    }
}

#[test]
fn a_generation_is_written_beside_the_old_one_and_switched_to() {
    let mut bench = Bench::new();
    assert_eq!(bench.maps.look_up(80), None);
    let applied = bench.apply(&tables(vec![service("web", 80, &[10, 11])])).unwrap();
    assert_eq!(
        (applied.slot, applied.left_behind, applied.schedules_built),
        (1, 0, 1)
    );
    let (web, servers) = bench.maps.look_up(80).unwrap();
    assert_eq!(servers, [server(10), server(11)]);
    assert_eq!(
        (web.mode, web.scheduler, web.hairpin),
        (maps::mode::DNAT, maps::scheduler::WRR, maps::hairpin::AUTO)
    );
    assert_eq!((web.snat_base, web.snat_len), (0, 1));
    assert_eq!(bench.maps.slots_used(), [0, applied.entries]);

    let applied = bench.apply(&tables(vec![service("web", 8_080, &[11])])).unwrap();
    assert_eq!(applied.slot, 0);
    assert_eq!(bench.maps.look_up(80), None);
    assert_eq!(bench.maps.look_up(8_080).unwrap().1, [server(11)]);
    assert_eq!(bench.maps.slots_used(), [applied.entries, 0]);
}

#[test]
fn the_entries_of_a_generation_say_what_the_tables_say() {
    let mut bench = Bench::new();
    bench.apply(&tables(vec![service("web", 80, &[10])])).unwrap();
    let slot = 1_u32;
    let vip = wide(VIP);
    let owned = maps::Owned {
        kinds: 7,
        ..maps::Owned::default()
    };
    let scope = |addr: [u8; 4]| maps::ScopedPrefix {
        scope: slot.to_be_bytes(),
        addr: wide(addr.into()).bytes(),
    };
    for entry in [
        Entry::Owned(OwnedKey { addr: vip, slot }, owned),
        Entry::SnatRange(
            OwnedKey { addr: vip, slot },
            maps::SnatRange {
                first: 20_000,
                last: 59_999,
            },
        ),
        Entry::Connected(152, scope([192, 168, 100, 0]), 1),
        Entry::ServerNetwork(152, scope([192, 168, 100, 0]), vip),
        Entry::Direct(144, scope([10, 9, 0, 0])),
        Entry::Endpoint(maps::EndpointKey {
            addr: wide(server(10)),
            port: 80_u16.to_be(),
            proto: 6,
            slot: 1,
        }),
        Entry::Port(
            160,
            ServiceKey {
                slot: 1,
                proto: 6,
                addr: wide(VIP).bytes(),
                port: [0, 80],
            },
            bench.registry.services()["web"].index,
        ),
    ] {
        assert!(
            bench.maps.keyed.contains(&entry),
            "{entry:?} not in {:?}",
            bench.maps.keyed
        );
    }
    assert_eq!(bench.maps.keyed.len(), 9);
    let written = bench.maps.servers[&bench.index("web", 0)];
    assert_eq!(
        (written.net, written.flags),
        (
            1,
            maps::server::USED | maps::server::UP | 1 << maps::server::WEIGHT_SHIFT
        )
    );
}

#[test]
fn a_failure_at_any_write_leaves_the_old_generation_in_force_and_the_next_one_clean() {
    let before = tables(vec![service("web", 80, &[10, 11]), service("dns", 53, &[12])]);
    let after = tables(vec![service("web", 80, &[11, 13]), service("mail", 25, &[14])]);
    for fail_at in 1.. {
        let mut bench = Bench::new();
        bench.apply(&before).unwrap();
        let (slot, used) = (bench.maps.slot, bench.maps.slots_used());
        let seen = [
            bench.maps.look_up(80),
            bench.maps.look_up(53),
            bench.maps.look_up(25),
        ];
        bench.maps.writes = 0;
        bench.maps.fail_at = Some(fail_at);
        let result = bench.apply(&after);
        bench.maps.fail_at = None;
        if let Ok(applied) = result {
            // The failure came after the switch, in the sweep, or not at all.
            assert!(
                applied.slot != slot && applied.left_behind <= 1,
                "write {fail_at}: {applied:?}"
            );
            if applied.left_behind == 0 {
                assert!(fail_at > 15, "only {fail_at} writes");
                return;
            }
        } else {
            assert_eq!(bench.maps.slot, slot, "write {fail_at}");
            let now = [
                bench.maps.look_up(80),
                bench.maps.look_up(53),
                bench.maps.look_up(25),
            ];
            assert_eq!(now, seen, "write {fail_at}");
        }
        let applied = bench.apply(&after).unwrap();
        assert_eq!(bench.maps.look_up(80).unwrap().1, [server(11), server(13)]);
        assert_eq!(bench.maps.look_up(53), None);
        let mut used_now = bench.maps.slots_used();
        assert_eq!(
            used_now[applied.slot as usize], applied.entries,
            "write {fail_at}"
        );
        used_now[applied.slot as usize] = 0;
        assert_eq!(
            used_now,
            [0, 0],
            "write {fail_at}: something of {used:?} was left"
        );
    }
}

#[test]
fn what_could_not_be_swept_is_swept_before_the_slot_is_used_again() {
    let mut bench = Bench::new();
    bench.apply(&tables(vec![service("web", 80, &[10])])).unwrap();
    bench.maps.stuck = true;
    let applied = bench.apply(&tables(vec![service("web", 81, &[10])])).unwrap();
    assert_eq!(applied.left_behind, applied.entries);
    assert!(bench.apply(&tables(vec![service("web", 82, &[10])])).is_err());
    assert!(bench.maps.look_up(81).is_some());
    bench.maps.stuck = false;
    let applied = bench.apply(&tables(vec![service("web", 82, &[10])])).unwrap();
    assert_eq!(bench.maps.slots_used()[1 - applied.slot as usize], 0);
    assert!(bench.maps.look_up(82).is_some());
}

#[test]
fn an_unchanged_service_keeps_its_scheduler_table() {
    let mut bench = Bench::new();
    bench
        .apply(&tables(vec![
            service("web", 80, &[10, 11]),
            service("dns", 53, &[12]),
        ]))
        .unwrap();
    let table = bench.maps.look_up(80).unwrap().0.table;
    let applied = bench
        .apply(&tables(vec![
            service("web", 80, &[10, 11]),
            service("dns", 53, &[13]),
        ]))
        .unwrap();
    assert_eq!(applied.schedules_built, 1);
    assert_eq!(bench.maps.look_up(80).unwrap().0.table, table);
}

#[test]
fn indexes_follow_identities_over_generations() {
    let mut bench = Bench::new();
    bench.apply(&tables(vec![service("web", 80, &[10, 11])])).unwrap();
    let (ten, eleven) = (bench.index("web", 0), bench.index("web", 1));
    let web = bench.registry.services()["web"].index;
    // Another order, a new one in between, another service before it.
    bench
        .apply(&tables(vec![
            service("aaa", 1, &[10]),
            service("web", 80, &[12, 11, 10]),
        ]))
        .unwrap();
    assert_eq!((bench.index("web", 1), bench.index("web", 2)), (eleven, ten));
    assert_eq!(bench.registry.services()["web"].index, web);
    assert_ne!(
        bench.index("aaa", 0),
        ten,
        "the same host in two services has two counters"
    );
}

#[test]
fn the_index_of_a_removed_server_is_not_given_to_another_while_a_flow_names_it() {
    let mut bench = Bench::new();
    bench.apply(&tables(vec![service("web", 80, &[10, 11])])).unwrap();
    let ten = bench.index("web", 0);
    bench.apply(&tables(vec![service("web", 80, &[11])])).unwrap();
    let left = bench.maps.servers[&ten];
    assert_eq!(
        (left.addr, left.flags),
        (
            wide(server(10)),
            maps::server::USED | maps::server::MOVES | 1 << maps::server::WEIGHT_SHIFT
        )
    );
    let mut in_use = IndexSet::new();
    in_use.insert(u16::try_from(ten).unwrap());
    bench.reclaim(&in_use);
    bench.apply(&tables(vec![service("web", 80, &[11, 12])])).unwrap();
    assert_ne!(bench.index("web", 1), ten);
    // It comes back while its flows live: the same index, the same flows.
    bench
        .apply(&tables(vec![service("web", 80, &[11, 12, 10])]))
        .unwrap();
    assert_eq!(bench.index("web", 2), ten);
    assert_eq!(
        bench.maps.servers[&ten].flags,
        maps::server::USED | maps::server::UP | 1 << maps::server::WEIGHT_SHIFT
    );
    bench.apply(&tables(vec![service("web", 80, &[11])])).unwrap();
    assert_eq!(bench.reclaim(&IndexSet::new()), 2);
    assert_eq!(bench.maps.servers[&ten], Server::default());
}

#[test]
fn a_server_going_down_leaves_the_table_by_one_store_and_comes_back() {
    let mut bench = Bench::new();
    bench.apply(&tables(vec![service("web", 80, &[10, 11])])).unwrap();
    let (graces, before) = (bench.maps.graces, bench.maps.look_up(80).unwrap().0);
    let down = ServerChange {
        service: "web".into(),
        server: id(10),
        weight: None,
        up: Some(false),
    };
    bench.change(std::slice::from_ref(&down)).unwrap();
    let (after, servers) = bench.maps.look_up(80).unwrap();
    assert_eq!(servers, [server(11)]);
    assert_eq!(
        Service {
            table: before.table,
            ..after
        },
        before,
        "nothing but the table changed"
    );
    assert_ne!(
        after.table & 0xffff_ffff,
        before.table & 0xffff_ffff,
        "a fresh region"
    );
    let weight = 1 << maps::server::WEIGHT_SHIFT;
    assert_eq!(
        bench.maps.servers[&bench.index("web", 0)].flags,
        maps::server::USED | maps::server::RESETS | weight
    );
    assert_eq!(bench.maps.graces, graces, "no waiting for one change");

    let both = ServerChange {
        server: id(11),
        ..down.clone()
    };
    bench.change(std::slice::from_ref(&both)).unwrap();
    assert_eq!(bench.maps.look_up(80).unwrap().0.table, 0);
    let up = |change: ServerChange| ServerChange {
        up: Some(true),
        ..change
    };
    let heavier = ServerChange {
        weight: Some(3),
        ..up(down)
    };
    bench.change(&[heavier, up(both)]).unwrap();
    assert_eq!(bench.maps.look_up(80).unwrap().1.len(), 4);
}

/// Five thousand new connections over servers with weights 5, 3 and 1, by every scheduler, drawn as the programs draw.
#[test]
fn b120_no_scheduler_gives_a_server_that_is_down_a_connection_and_the_rest_goes_by_weight() {
    let schedulers = [
        (Scheduler::Maglev, maps::scheduler::MAGLEV),
        (Scheduler::SourceHash, maps::scheduler::SOURCE_HASH),
        (Scheduler::Wrr, maps::scheduler::WRR),
        (Scheduler::Wlc, maps::scheduler::WLC),
    ];
    for (scheduler, number) in schedulers {
        let mut bench = Bench::new();
        let mut spec = ServiceSpec {
            scheduler,
            ..service("web", 80, &[10, 11, 12])
        };
        for (server, weight) in spec.servers.iter_mut().zip([5, 3, 1]) {
            server.weight = weight;
        }
        bench.apply(&tables(vec![spec])).unwrap();
        let shares = |bench: &Bench| {
            let (service, servers) = bench.maps.look_up(80).unwrap();
            assert_eq!(service.scheduler, number);
            let length = u32::try_from(servers.len()).unwrap();
            let mut shares = [0_u32; 3];
            for n in 0..5_000 {
                let hash = onearm_dataplane_common::hash::sip13([1, 2], n, 0);
                let entry = table_entry(number, length, hash, n);
                let chosen = servers[entry as usize];
                let at = (10..13).position(|n| server(n) == chosen).unwrap();
                let flags = bench.maps.servers[&bench.index("web", at)].flags;
                assert_ne!(flags & maps::server::UP, 0, "the map says what the table says");
                shares[at] += 1;
            }
            shares
        };
        let near = |got: u32, of: u32, total: u32| got.abs_diff(5_000 * of / total) < 150;
        let down = |n| ServerChange {
            service: "web".into(),
            server: id(n),
            weight: None,
            up: Some(false),
        };
        let all = shares(&bench);
        assert!(
            near(all[0], 5, 9) && near(all[1], 3, 9) && near(all[2], 1, 9),
            "{scheduler:?}: {all:?}"
        );
        bench.change(&[down(10)]).unwrap();
        let two = shares(&bench);
        assert!(
            two[0] == 0 && near(two[1], 3, 4) && near(two[2], 1, 4),
            "{scheduler:?}: {two:?}"
        );
        bench.change(&[down(11)]).unwrap();
        assert_eq!(shares(&bench), [0, 0, 5_000], "{scheduler:?}");
        bench.change(&[down(12)]).unwrap();
        assert!(bench.maps.look_up(80).unwrap().1.is_empty(), "{scheduler:?}");
    }
}

#[test]
fn health_flapping_for_ever_does_not_use_up_the_scheduler_space() {
    let mut bench = Bench::new();
    let mut web = service("web", 80, &[10, 11, 12]);
    web.scheduler = Scheduler::Maglev;
    bench.apply(&tables(vec![web])).unwrap();
    for n in 0..20_000 {
        let change = ServerChange {
            service: "web".into(),
            server: id(10),
            weight: None,
            up: Some(n % 2 == 1),
        };
        bench.change(&[change]).unwrap();
    }
    assert!(bench.maps.look_up(80).unwrap().1.contains(&server(10)));
    assert!(bench.maps.graces > 50);
}

#[test]
fn a_change_for_an_unknown_server_changes_nothing() {
    let mut bench = Bench::new();
    bench.apply(&tables(vec![service("web", 80, &[10, 11])])).unwrap();
    let before = bench.maps.look_up(80);
    let good = ServerChange {
        service: "web".into(),
        server: id(10),
        weight: None,
        up: Some(false),
    };
    let bad = ServerChange {
        server: id(99),
        ..good.clone()
    };
    let error = bench.change(&[good, bad]).unwrap_err();
    assert!(
        matches!(error, Error::Tables(TablesError::UnknownServer { .. })),
        "{error}"
    );
    assert_eq!(bench.maps.look_up(80), before);
}

#[test]
fn a_servers_next_hop_is_there_before_the_switch_and_repaired_in_place() {
    let mut bench = Bench::new();
    let leg = LegSpec {
        id: 0,
        ifindex: 3,
        vlan: None,
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1_500,
        addr: None,
        addr6: None,
        link_local: None,
        group: GroupId::FIRST,
        peer_mac: None,
    };
    bench.mirror.set_legs(&[leg], &mut bench.maps).unwrap();
    let neighbour = |mac| Neighbour {
        leg: 0,
        addr: server(10),
        mac,
    };
    let on_link = RouteSpec {
        prefix: net("192.168.100.0/24"),
        via: Via::OnLink { leg: 0 },
        mtu: None,
    };
    let hops = |mac| NextHops {
        neighbours: vec![neighbour(mac)],
        routes: vec![on_link],
    };
    bench
        .mirror
        .set(&hops(Some([2, 0, 0, 0, 0, 10])), &mut bench.maps)
        .unwrap();
    bench.apply(&tables(vec![service("web", 80, &[10])])).unwrap();
    let hop = bench.maps.servers[&bench.index("web", 0)].next_hop;
    let mac = |bench: &Bench| bench.maps.hops[&hop][0].to_ne_bytes();
    assert_eq!(mac(&bench), [2, 0, 0, 0, 0, 10, 0, 0]);
    bench
        .mirror
        .set(&hops(Some([2, 0, 0, 0, 0, 77])), &mut bench.maps)
        .unwrap();
    assert_eq!(mac(&bench), [2, 0, 0, 0, 0, 77, 0, 0]);
    bench.apply(&tables(vec![service("web", 80, &[10, 11])])).unwrap();
    assert_eq!(bench.maps.servers[&bench.index("web", 0)].next_hop, hop);
}

#[test]
fn four_thousand_services_and_sixteen_thousand_servers_fit() {
    let mut bench = Bench::new();
    let mut wanted = tables(Vec::new());
    for n in 0..4_096_u32 {
        let vip = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n));
        let kinds = OwnedKinds {
            service: true,
            ..OwnedKinds::default()
        };
        wanted.owned.push(OwnedAddress {
            addr: vip,
            kinds,
            leg: 0,
            group: GroupId::FIRST,
        });
        let mut spec = service(&format!("s{n}"), 80, &[]);
        spec.vip = vip;
        spec.mode = Mode::BothNat;
        spec.scheduler = Scheduler::Maglev;
        for m in 0..4 {
            let addr = IpAddr::V4(Ipv4Addr::from(0x0b00_0000 + n * 4 + m));
            spec.servers.push(ServerSpec {
                id: ServerId { addr, port: 0 },
                weight: 1,
                up: true,
            });
        }
        wanted.services.push(spec);
    }
    let registry = Registry::new([1, 2]);
    let compiled = crate::tables::compile(&registry, &bench.mirror.ids, &wanted, 1, MOST_ENDPOINTS).unwrap();
    assert_eq!(compiled.servers.len(), 16_384);
    assert_eq!(compiled.image.services.len(), 4_096);
    wanted.services.push(service("one-more", 81, &[]));
    let error = bench.apply(&wanted).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Tables(TablesError::TooMany { what: "services", .. })
        ),
        "{error}"
    );
}

fn arbitrary_tables() -> impl Strategy<Value = Tables> {
    let one = (
        1_u16..6,
        prop::collection::btree_set(10_u8..20, 0..5),
        any::<bool>(),
        any::<bool>(),
    );
    prop::collection::vec(one, 0..5).prop_map(|services| {
        let mut specs: Vec<ServiceSpec> = Vec::new();
        for (port, servers, dnat, maglev) in services {
            if specs.iter().any(|s| s.ports == [port..=port]) {
                continue;
            }
            let servers: Vec<u8> = servers.into_iter().collect();
            let mut spec = service(&format!("s{port}"), port, &servers);
            spec.mode = if dnat { Mode::Dnat } else { Mode::BothNat };
            spec.scheduler = if maglev { Scheduler::Maglev } else { Scheduler::Wrr };
            specs.push(spec);
        }
        tables(specs)
    })
}

#[derive(Clone, Debug)]
enum Op {
    Apply(Tables),
    FailingApply(Tables, usize),
    Change(u16, u8, bool, u16),
    Reclaim,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => arbitrary_tables().prop_map(Op::Apply),
        2 => (arbitrary_tables(), 1_usize..40).prop_map(|(t, n)| Op::FailingApply(t, n)),
        4 => (1_u16..6, 10_u8..20, any::<bool>(), 0_u16..4).prop_map(|(p, s, up, w)| Op::Change(p, s, up, w)),
        1 => Just(Op::Reclaim),
    ]
}

proptest! {

    /// The maps always show exactly the last tables that were accepted, with the changes since.
    #[test]
    fn packets_see_the_last_accepted_generation(ops in prop::collection::vec(op(), 1..20)) {
        let mut bench = Bench::new();
        let mut model = tables(Vec::new());
        for op in ops {
            match op {
                Op::Apply(tables) => {
                    bench.apply(&tables).unwrap();
                    model = tables;
                }
                Op::FailingApply(tables, fail_at) => {
                    bench.maps.writes = 0;
                    bench.maps.fail_at = Some(fail_at);
                    let result = bench.apply(&tables);
                    bench.maps.fail_at = None;
                    if result.is_ok() {
                        model = tables;
                    }
                }
                Op::Change(port, server, up, weight) => {
                    let service = model.services.iter_mut().find(|s| s.ports == [port..=port]);
                    let spec = service.and_then(|s| s.servers.iter_mut().find(|s| s.id == id(server)));
                    let change = ServerChange { service: format!("s{port}"), server: id(server), weight: Some(weight), up: Some(up) };
                    prop_assert_eq!(bench.change(&[change]).is_ok(), spec.is_some());
                    if let Some(spec) = spec {
                        (spec.up, spec.weight) = (up, weight);
                    }
                }
                Op::Reclaim => drop(bench.reclaim(&IndexSet::new())),
            }
            for port in 1..6 {
                let seen = bench.maps.look_up(port);
                let spec = model.services.iter().find(|s| s.ports == [port..=port]);
                prop_assert_eq!(seen.is_some(), spec.is_some());
                let (Some((service, servers)), Some(spec)) = (seen, spec) else { continue };
                prop_assert_eq!(service.mode == maps::mode::DNAT, spec.mode == Mode::Dnat);
                let mut seen: Vec<IpAddr> = servers;
                seen.sort_unstable();
                seen.dedup();
                let mut live: Vec<IpAddr> =
                    spec.servers.iter().filter(|s| s.up && s.weight > 0).map(|s| s.id.addr).collect();
                live.sort_unstable();
                prop_assert_eq!(seen, live);
            }
        }
    }
}
