//! What the packet logic looks up and counts, in lists.

use super::{Counted, Host};
use crate::support::Permission;
use onearm_dataplane_common::{
    addr::{Addr, Address},
    counter::Counter,
    event::{Event, PACE_NS},
    maps::{
        EndpointKey, FragmentKey, LastHop, Leg, LegKey, Limits, NeighbourKey, NextHop, Node, Owned, OwnedKey,
        Remembered, Route, ScopedPrefix, Server, Service, ServiceKey, SnatPool, SnatRange, Tunnel,
    },
    permission::YIELDING,
    persistence::{self, Rule},
    refusal::Rate,
    table::Entry,
    tables::Tables,
    tell::{ENDED4, ENDED6, FLOOR, LISTENING, incarnation_word},
    work::Work,
};

fn of<K: PartialEq, V>(list: &[(K, V)], key: &K) -> Option<V>
where
    V: Copy,
{
    list.iter().rev().find(|(k, _)| k == key).map(|(_, v)| *v)
}

/// Longest match of `bits` (most significant first) among (length, bits, value).
fn longest<const N: usize, V: Copy>(
    list: impl Iterator<Item = (u32, [u8; N], V)>,
    bits: [u8; N],
) -> Option<V> {
    let same = |len: u32, want: &[u8; N]| {
        (0..len as usize).all(|n| (bits[n / 8] ^ want[n / 8]) & (0x80 >> (n % 8)) == 0)
    };
    list.filter(|(len, want, _)| same(*len, want))
        .max_by_key(|(len, _, _)| *len)
        .map(|(_, _, v)| v)
}

fn scoped<V: Copy>(list: &[(u32, ScopedPrefix, V)], scope: u32, addr: Addr) -> Option<V> {
    let bits = |scope: [u8; 4], addr: [u8; 16]| -> [u8; 20] {
        std::array::from_fn(|n| if n < 4 { scope[n] } else { addr[n - 4] })
    };
    longest(
        list.iter().map(|(len, p, v)| (*len, bits(p.scope, p.addr), *v)),
        bits(scope.to_be_bytes(), addr.bytes()),
    )
}

impl Tables for Host {
    fn node(&self) -> Option<&Node> {
        Some(&self.setup.node)
    }
    fn slot(&self) -> u32 {
        self.slot
    }
    fn lease(&self, group: u8) -> u64 {
        // One that ends now is over.
        match self.permission {
            Permission::Owner if group == 0 => (self.now + 2) & !YIELDING,
            Permission::Yielding if group == 0 => (self.now + 2) | YIELDING,
            _ => self.now,
        }
    }
    fn armed(&self, group: u8) -> u64 {
        match self.permission {
            Permission::Armed if group == 0 => self.now + 1,
            Permission::ArmedUntilNow => self.now,
            _ => 0,
        }
    }
    fn relaying(&self, group: u8) -> u64 {
        let relays = matches!(self.permission, Permission::Yielding | Permission::Relaying);
        if relays && group == 0 {
            self.now + 1
        } else {
            self.now
        }
    }
    fn now(&self) -> u64 {
        self.now
    }
    fn leg(&self, key: &LegKey) -> Option<&Leg> {
        self.setup.legs.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }
    fn owned(&self, slot: u32, addr: Addr) -> Option<Owned> {
        of(&self.setup.owned, &OwnedKey { addr, slot })
    }
    fn snat_range(&self, slot: u32, addr: Addr) -> Option<SnatRange> {
        of(&self.setup.snat_ranges, &OwnedKey { addr, slot })
    }
    fn service_index(&self, key: &ServiceKey) -> Option<u32> {
        let bits = |k: &ServiceKey| -> [u8; 20] {
            let all = [&[k.slot, k.proto], &k.addr[..], &k.port].concat();
            all.try_into().expect("twenty bytes")
        };
        longest(
            self.setup.services.iter().map(|(len, k, v)| (*len, bits(k), *v)),
            bits(key),
        )
    }
    fn service(&self, slot: u32, index: u32) -> Option<&Service> {
        self.setup
            .service
            .iter()
            .find(|(i, _)| slot == 0 && *i == index)
            .map(|(_, v)| v)
    }
    fn tunnel(&self, slot: u32, index: u32) -> Option<&Tunnel> {
        let mut all = self.setup.tunnels.iter();
        all.find(|(i, _)| slot == 0 && *i == index).map(|(_, v)| v)
    }
    fn mode_rule(&self, slot: u32, service: u32, addr: Addr) -> Option<u32> {
        scoped(&self.setup.mode_rules, slot << 24 | service, addr)
    }
    fn sched_word(&self, word: u32) -> u64 {
        self.setup.sched.get(word as usize).copied().unwrap_or(0)
    }
    fn wrr_next(&self, stats: u32) -> u64 {
        let mut wrr = self.wrr.borrow_mut();
        let counter = wrr.entry(stats).or_default();
        *counter += 1;
        *counter - 1
    }
    fn server(&self, index: u32) -> Option<&Server> {
        self.setup
            .servers
            .iter()
            .find(|(i, _)| *i == index)
            .map(|(_, v)| v)
    }
    fn snat_pool(&self, slot: u32, index: u32) -> Option<SnatPool> {
        if slot == 0 {
            of(&self.setup.pools, &index)
        } else {
            None
        }
    }
    fn connected(&self, slot: u32, addr: Addr) -> u32 {
        scoped(&self.setup.connected, slot, addr).unwrap_or(0)
    }
    fn server_net(&self, slot: u32, addr: Addr) -> Option<Addr> {
        scoped(&self.setup.server_nets, slot, addr)
    }
    fn direct(&self, slot: u32, addr: Addr) -> bool {
        scoped(&self.setup.direct, slot, addr).is_some()
    }
    fn hairpin(&self, slot: u32, service: u32, addr: Addr) -> bool {
        scoped(&self.setup.hairpin, slot << 24 | service, addr).is_some()
    }
    fn endpoint(&self, key: &EndpointKey) -> bool {
        self.setup.endpoints.contains(key)
    }
    fn next_hop(&self, index: u32) -> Option<NextHop> {
        of(&self.setup.next_hops, &index)
    }
    fn neighbour(&self, key: &NeighbourKey) -> Option<u32> {
        of(&self.setup.neighbours, key)
    }
    fn route(&self, addr: Addr) -> Option<Route> {
        longest(
            self.setup.routes.iter().map(|(len, a, r)| (*len, a.bytes(), *r)),
            addr.bytes(),
        )
    }
    fn last_hop(&self, index: u32) -> Option<LastHop> {
        self.last_hops.borrow().get(index as usize).map(|(_, hop)| *hop)
    }
    fn last_hop_index(&self, hop: &LastHop) -> Option<u32> {
        let hops = self.last_hops.borrow();
        let index = hops.iter().position(|(learned, _)| learned == hop)?;
        u32::try_from(index).ok()
    }
    fn learn_last_hop(&self, hop: &LastHop) -> Option<u32> {
        let mut hops = self.last_hops.borrow_mut();
        let index = u32::try_from(hops.len()).ok()?;
        (index < self.setup.free_last_hops).then(|| hops.push((*hop, *hop)))?;
        Some(index)
    }
    fn fragment(&self, key: &FragmentKey) -> Option<Remembered> {
        self.fragments.borrow().get(key).copied()
    }
    fn remember_fragment(&self, key: &FragmentKey, value: &Remembered) {
        self.fragments.borrow_mut().insert(*key, *value);
    }
    fn next_fragment_id(&self, index: u32) -> u64 {
        let mut ids = self.fragment_ids.borrow_mut();
        let next = ids.entry(index).or_default();
        *next += 1;
        *next - 1
    }
    fn half_open(&self) -> u64 {
        self.half_open.get()
    }
    fn add_half_open(&self, n: u64) {
        self.half_open.set(self.half_open.get().wrapping_add(n));
    }
    fn next_incarnation(&self) -> u64 {
        self.incarnation.replace(self.incarnation.get() + 1)
    }
    fn count(&self, counter: Counter) {
        self.counters.borrow_mut()[counter.index() as usize] += 1;
    }
    fn tally(&self, stats: u16, server: u16, reply: bool, bytes: u64) {
        self.tallied.borrow_mut().push((stats, server, reply, bytes));
    }
    fn tally_flow(&self, _stats: u16, _server: u16) {}
    fn tally_refused(&self, stats: u32, reason: Counter) {
        self.refusals.borrow_mut().entry(stats).or_default().add(reason);
    }
    fn limits(&self, slot: u32, service: u32) -> Option<Limits> {
        (slot == 0).then(|| of(&self.setup.limits, &service).unwrap_or_default())
    }
    fn client_rule(&self, slot: u32, service: u32, addr: Addr) -> Option<u32> {
        scoped(&self.setup.clients, slot << 24 | service, addr)
    }
    fn open_of_service(&self, stats: u32) -> u64 {
        self.count_of(Counted::Service(stats))
    }
    fn open_of_server(&self, server: u32) -> u64 {
        self.count_of(Counted::Server(server))
    }
    fn add_open(&self, stats: u16, server: u16, n: u64) {
        self.add_to(Counted::Service(u32::from(stats)), n);
        self.add_to(Counted::Server(u32::from(server)), n);
    }
    fn source(&self, slot: u32) -> u64 {
        self.count_of(Counted::Source(slot))
    }
    fn add_source(&self, slot: u32, n: u64) {
        self.add_to(Counted::Source(slot), n);
    }
    fn persistence(&self, stats: u32) -> Rule {
        of(&self.setup.persistence, &stats).unwrap_or_default()
    }
    fn client_servers(&self, bucket: u32) -> Option<*const persistence::Bucket> {
        self.setup
            .client_servers
            .get(bucket as usize)
            .map(std::ptr::from_ref)
    }
    fn event_due(&self, slot: u32, now: u64) -> bool {
        let mut pace = self.pace.borrow_mut();
        let due = pace.get(&slot).is_none_or(|last| now - last >= PACE_NS);
        if due {
            pace.insert(slot, now);
        }
        due
    }
    fn emit(&self, event: &Event) {
        self.events.borrow_mut().push(*event);
    }
    fn is_listening(&self) -> bool {
        self.setup.sync[LISTENING as usize] != 0
    }
    fn floor(&self) -> u32 {
        u32::try_from(self.setup.sync[FLOOR as usize]).expect("a tick")
    }
    fn tell_look(&self, place: u64) {
        self.tells.borrow_mut().push(vec![place]);
    }
    fn tell_ended<A: Address>(&self, place: u64, entry: Entry<A>, incarnation: u64) {
        let len = if A::V6 { ENDED6 } else { ENDED4 };
        let mut record: Vec<u64> = [place]
            .into_iter()
            .chain((0..len - 1).map(|n| entry.word(n)))
            .collect();
        record[1 + incarnation_word::<A>()] = incarnation;
        self.tells.borrow_mut().push(record);
    }
    fn charge(&self, meter: u32, now: u64, rate: Rate) -> bool {
        let mut meters = self.meters.borrow_mut();
        let meter = &mut meters[meter as usize];
        meter.charge(now, rate).map(|m| *meter = m).is_some()
    }
    fn random(&self) -> u32 {
        self.drawn.set(self.drawn.get() + 1);
        let next = self
            .random
            .get()
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.random.set(next);
        next
    }
    fn lock_owner(&self) -> u64 {
        1
    }
    fn leave(&self, write: impl FnOnce(&mut Work)) -> bool {
        write(&mut self.work.borrow_mut());
        true
    }
}
