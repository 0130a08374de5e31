//! The one-arm drawing as map contents.

use super::frames::{Mac, ip, raw, v6};
use onearm_dataplane_common::maps::{
    Addr, EndpointKey, Leg, LegKey, Limits, NeighbourKey, NextHop, Node, Owned, OwnedKey, Route,
    ScopedPrefix, Server, Service, ServiceKey, SnatPool, SnatRange, Tunnel, hairpin, mode, owned, proto,
    scheduler, server,
};
use onearm_dataplane_common::persistence::{Bucket, Noted, Rule, bucket, fingerprint};

/// The loopback interface, which test runs arrive by.
pub const IFINDEX: u32 = 1;
pub const OTHER_IFINDEX: u32 = 77;
pub const OUR_MAC: Mac = [2, 0, 0, 0, 0, 1];
pub const OTHER_MAC: Mac = [2, 0, 0, 0, 7, 7];
pub const PEER_MAC: Mac = [2, 0, 0, 0, 0, 2];
pub const ROUTER_MAC: Mac = [2, 0, 0, 0, 0, 254];
pub const S1_MAC: Mac = [2, 0, 0, 0, 1, 1];
pub const S2_MAC: Mac = [2, 0, 0, 0, 1, 2];
pub const BROADCAST: Mac = [0xff; 6];

pub const VIP: &str = "192.168.100.100";
pub const GATEWAY: &str = "192.168.100.1";
pub const OUR_ADDR: &str = "192.168.100.2";
pub const ROUTER: &str = "192.168.100.254";
pub const S1: &str = "192.168.100.10";
pub const S2: &str = "192.168.100.11";
/// Behind the router.
pub const S3: &str = "10.20.30.40";
/// On VLAN 10.
pub const S4: &str = "172.16.10.20";
/// On the other interface.
pub const S5: &str = "172.16.77.20";

/// First and last port of this node's half.
pub const HALF: (u16, u16) = (32_768, 49_151);

/// Buckets of `CLIENT_SERVERS`.
pub const CLIENT_BUCKETS: u32 = 4;

/// Contents of the maps. Prefix lengths as in the tries.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub node: Node,
    /// Words of `FLOW_SYNC`.
    pub sync: [u64; 2],
    pub legs: Vec<(LegKey, Leg)>,
    pub owned: Vec<(OwnedKey, Owned)>,
    pub snat_ranges: Vec<(OwnedKey, SnatRange)>,
    pub services: Vec<(u32, ServiceKey, u32)>,
    pub service: Vec<(u32, Service)>,
    pub limits: Vec<(u32, Limits)>,
    pub persistence: Vec<(u32, Rule)>,
    pub client_servers: [Bucket; CLIENT_BUCKETS as usize],
    pub clients: Vec<(u32, ScopedPrefix, u32)>,
    pub sched: Vec<u64>,
    pub servers: Vec<(u32, Server)>,
    pub pools: Vec<(u32, SnatPool)>,
    pub connected: Vec<(u32, ScopedPrefix, u32)>,
    pub server_nets: Vec<(u32, ScopedPrefix, Addr)>,
    pub direct: Vec<(u32, ScopedPrefix, u32)>,
    pub hairpin: Vec<(u32, ScopedPrefix, u32)>,
    pub mode_rules: Vec<(u32, ScopedPrefix, u32)>,
    pub tunnels: Vec<(u32, Tunnel)>,
    pub endpoints: Vec<EndpointKey>,
    pub next_hops: Vec<(u32, NextHop)>,
    pub neighbours: Vec<(NeighbourKey, u32)>,
    pub routes: Vec<(u32, Addr, Route)>,
    pub buckets: u32,
    /// Last hops that programs may learn.
    pub free_last_hops: u32,
}

pub fn prefix<V>(scope: u32, addr: &str, bits: u32, value: V) -> (u32, ScopedPrefix, V) {
    (
        BITS_BEFORE + 32 + bits,
        ScopedPrefix {
            scope: scope.to_be_bytes(),
            addr: net(addr).bytes(),
        },
        value,
    )
}

/// Bits of an address before its IPv4 part: of a mapped one, or of the prefix the tests use.
pub const BITS_BEFORE: u32 = 96;

/// A network's address; `0.0.0.0` is the part of all addresses that the tests use.
fn net(addr: &str) -> Addr {
    match addr {
        "0.0.0.0" => {
            let Addr([a, b, c, _]) = raw(ip("1.1.1.1"));
            Addr([a, b, c, 0])
        }
        _ => raw(ip(addr)),
    }
}

fn hop(mac: Mac, vlan: u16, ifindex: u32, leg: u8) -> NextHop {
    NextHop {
        mac,
        vlan,
        ifindex,
        leg,
        valid: 1,
        mtu: 1_500,
    }
}

/// A service of [`Setup::classic`]: `port` on `VIP`, its servers by index.
#[derive(Clone, Debug)]
pub struct ServiceSpec<'a> {
    pub vip: &'a str,
    pub port: u16,
    pub proto: u8,
    pub mode: u8,
    pub hairpin: u8,
    pub scheduler: u8,
    pub servers: &'a [u16],
}

impl ServiceSpec<'_> {
    pub const BOTH_NAT: ServiceSpec<'static> = ServiceSpec {
        vip: VIP,
        port: 80,
        proto: proto::TCP,
        mode: mode::BOTH_NAT,
        hairpin: hairpin::OFF,
        scheduler: scheduler::WRR,
        servers: &[1],
    };
    pub const DNAT: ServiceSpec<'static> = ServiceSpec {
        mode: mode::DNAT,
        hairpin: hairpin::AUTO,
        ..Self::BOTH_NAT
    };
}

impl Setup {
    /// Legs, VIP, gateway, servers 1–5 (no services yet); SNAT source is the VIP.
    #[expect(clippy::too_many_lines, reason = "one drawing")]
    pub fn classic() -> Self {
        let leg = |id, ifindex, vlan, mac, addr: &str| {
            let key = LegKey {
                ifindex,
                vlan,
                _pad: 0,
            };
            (
                key,
                Leg {
                    mac,
                    id,
                    group: 0,
                    addr: if v6() { Addr::NONE } else { raw(ip(addr)) },
                    addr6: if v6() { raw(ip(addr)) } else { Addr::NONE },
                    link_local: Addr::NONE,
                    peer_mac: PEER_MAC,
                    mtu: 1_500,
                },
            )
        };
        let owned = |addr: &str, kinds| {
            (
                OwnedKey {
                    addr: raw(ip(addr)),
                    slot: 0,
                },
                Owned {
                    kinds,
                    leg: 0,
                    group: 0,
                    _pad: 0,
                },
            )
        };
        let server = |addr: &str, net, next_hop| Server {
            addr: raw(ip(addr)),
            port: 0,
            net,
            next_hop,
            flags: server::USED | server::UP | 1 << server::WEIGHT_SHIFT,
            _pad: 0,
        };
        let route = |addr: &str, bits, gateway: &str, leg| {
            (
                BITS_BEFORE + bits,
                net(addr),
                Route {
                    gateway: if gateway == "0.0.0.0" {
                        Addr::NONE
                    } else {
                        raw(ip(gateway))
                    },
                    leg,
                    mtu: 0,
                },
            )
        };
        Self {
            sync: [1, 0],
            node: Node {
                flow_hash_key: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
                pair_hash_key: [1, 2],
                flow_buckets: 1024,
                flow6_buckets: 1024,
                half_open_budget: 1000,
                relay_to_peer: 0,
                half_open_ticks: 75,
                closing_ticks: 450,
                dsr_ways: 4,
                client_bucket_mask: CLIENT_BUCKETS - 1,
                incarnation_base: 1 << 56 | 7 << 40,
                snat_shift: 0,
            },
            legs: vec![
                leg(0, IFINDEX, 0, OUR_MAC, OUR_ADDR),
                leg(1, IFINDEX, 10, OUR_MAC, "172.16.10.2"),
                leg(2, OTHER_IFINDEX, 0, OTHER_MAC, "172.16.77.2"),
            ],
            owned: vec![
                owned(VIP, owned::SERVICE | owned::SNAT),
                owned(GATEWAY, owned::GATEWAY),
            ],
            snat_ranges: vec![(
                OwnedKey {
                    addr: raw(ip(VIP)),
                    slot: 0,
                },
                SnatRange {
                    first: HALF.0,
                    last: u16::MAX,
                },
            )],
            servers: vec![
                (1, server(S1, 1, 1)),
                (2, server(S2, 1, 2)),
                (3, server(S3, 0, 3)),
                (4, server(S4, 2, 4)),
                (5, server(S5, 3, 5)),
            ],
            pools: vec![(
                0,
                SnatPool {
                    addr: raw(ip(VIP)),
                    first: HALF.0,
                    last: HALF.1,
                },
            )],
            connected: vec![
                prefix(0, "192.168.100.0", 24, 1),
                prefix(0, "172.16.10.0", 24, 2),
                prefix(0, "172.16.77.0", 24, 3),
            ],
            server_nets: vec![prefix(0, "192.168.100.0", 24, raw(ip(GATEWAY)))],
            next_hops: vec![
                (1, hop(S1_MAC, 0, IFINDEX, 0)),
                (2, hop(S2_MAC, 0, IFINDEX, 0)),
                (3, hop(ROUTER_MAC, 0, IFINDEX, 0)),
                (4, hop([2, 0, 0, 0, 1, 4], 10, IFINDEX, 1)),
                (5, hop([2, 0, 0, 0, 1, 5], 0, OTHER_IFINDEX, 2)),
                (6, NextHop::default()),
            ],
            neighbours: [
                (S1, 0, 1),
                (S2, 0, 2),
                (ROUTER, 0, 3),
                (S4, 1, 4),
                (S5, 2, 5),
                ("192.168.100.66", 0, 6),
            ]
            .map(|(addr, leg, index)| {
                (
                    NeighbourKey {
                        addr: raw(ip(addr)),
                        leg,
                    },
                    index,
                )
            })
            .to_vec(),
            routes: vec![
                route("0.0.0.0", 0, ROUTER, 0),
                route("192.168.100.0", 24, "0.0.0.0", 0),
                route("172.16.10.0", 24, "0.0.0.0", 1),
                route("172.16.77.0", 24, "0.0.0.0", 2),
                (
                    128,
                    raw(ip("172.16.77.2")),
                    Route {
                        gateway: Addr::NONE,
                        leg: onearm_dataplane_common::maps::LOCAL_LEG,
                        mtu: 0,
                    },
                ),
            ],
            buckets: 1024,
            free_last_hops: 64,
            ..Self::default()
        }
    }

    /// Adds a service; its index and stats index are its place in the list.
    pub fn with(mut self, spec: &ServiceSpec<'_>) -> Self {
        let index = u32::try_from(self.service.len()).expect("few");
        let base = u64::try_from(self.sched.len() * 4).expect("few");
        for four in spec.servers.chunks(4) {
            self.sched
                .push(four.iter().rev().fold(0, |word, s| word << 16 | u64::from(*s)));
        }
        self.services.push((
            160,
            ServiceKey {
                slot: 0,
                proto: spec.proto,
                addr: raw(ip(spec.vip)).bytes(),
                port: spec.port.to_be_bytes(),
            },
            index,
        ));
        self.service.push((
            index,
            Service {
                table: base | (spec.servers.len() as u64) << 32,
                mode: spec.mode,
                scheduler: spec.scheduler,
                hairpin: spec.hairpin,
                group: 0,
                snat_base: 0,
                snat_len: 1,
                idle_ticks: 13_500,
                stats: index,
                options: 0,
                mss: 0,
                _pad: 0,
            },
        ));
        if spec.mode == mode::DNAT {
            for s in spec.servers {
                let server = self.servers[usize::from(*s) - 1].1;
                self.endpoints.push(EndpointKey {
                    addr: server.addr,
                    port: spec.port.to_be(),
                    proto: spec.proto,
                    slot: 0,
                });
            }
        }
        self
    }

    /// Clients of a service stay by a rule.
    pub fn persistent(mut self, service: u32, rule: Rule) -> Self {
        self.persistence.push((service, rule));
        self
    }

    /// A client of a service was last seen at a server in a tick.
    pub fn noted(mut self, service: u32, client: &str, noted: Noted) -> Self {
        let rule = self
            .persistence
            .iter()
            .find(|(of, _)| *of == service)
            .expect("a rule")
            .1;
        let who = fingerprint(self.node.flow_hash_key, service, rule.network(raw(ip(client))));
        let bucket = &mut self.client_servers[bucket(who, CLIENT_BUCKETS - 1) as usize];
        let way = bucket
            .clients
            .iter()
            .position(|way| *way == 0)
            .expect("a free way");
        bucket.values[way] = noted.word();
        bucket.clients[way] = who;
        self
    }

    /// The classic drawing with one service.
    pub fn service(spec: &ServiceSpec<'_>) -> Self {
        Self::classic().with(spec)
    }
}
