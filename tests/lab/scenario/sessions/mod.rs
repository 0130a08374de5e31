//! Long-lived connections over faults, hand-overs, failbacks and failovers again: how many break, how long the others wait.
//!
//! One pair lives through everything. Before each blow the tables of flows are to be equal, so that every connection is one
//! the other node knows. Beside onearm the same in the same run: keepalived with nftables, alone and with conntrackd.

mod blow;
mod many;
mod product;
mod row;
mod stage;
mod table;

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result};

use self::{blow::Blow, many::Many, product::Product, stage::Stage};
use super::{Run, Scenario, failover, modes, named};
use crate::{
    clock,
    measure::{
        echo::{self, Echo},
        sessions::Server,
    },
    node::Pair,
    service::{Mode, PairSpec},
    topology::{self, Family, OneArm, Options, SERVERS, VIP, VIP6},
    traffic,
};

/// Connections where many are wanted, and how many of them there are then.
const SIZES: [(&str, usize); 2] = [("1k", 1_000), ("20k", 20_000)];

/// Names the row of blows.
const ROW: &str = "row";

/// Short adverts and a stall of the machine may move ownership by themselves: so often a blow is dealt at most.
const ATTEMPTS: u32 = 3;

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "sessions",
        about: "1,000 and 20,000 connections over SIGKILL, link cut, power-off, switchover, failback, failover again, 24 blows in a row; beside conntrackd (--only, --peers, --interval, --unsynced)",
        for_peers: false,
        run,
    }
}

/// One mode and family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    mode: Mode,
    family: Family,
}

impl Cell {
    fn all() -> Vec<Self> {
        let families = [Family::V4, Family::V6];
        let of = |mode| families.map(|family| Self { mode, family });
        Mode::ALL.into_iter().flat_map(of).collect()
    }

    fn name(self) -> String {
        let six = if self.family == Family::V6 { "6" } else { "" };
        format!("{}{six}", self.mode.word())
    }

    fn vip(self) -> IpAddr {
        match self.family {
            Family::V4 => VIP.into(),
            Family::V6 => VIP6.into(),
        }
    }

    /// Where UDP answers of a server come from.
    fn server_address(self, short: &str) -> IpAddr {
        match (self.mode.is_direct(), self.family) {
            (true, _) => self.vip(),
            (false, Family::V4) => topology::address(short).into(),
            (false, Family::V6) => topology::address6(short).into(),
        }
    }
}

/// What the command line names: modes, blows and sizes; of what it names none, all, but many connections only in Both-NAT.
struct Named {
    cells: Vec<Cell>,
    blows: Vec<Blow>,
    sizes: Vec<usize>,
    everything: bool,
    /// Blows in a row in these.
    rows: Vec<Cell>,
}

impl Named {
    fn of(run: &Run) -> Result<Self> {
        let cells = Cell::all();
        let words = |wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
            run.wanted
                .only
                .iter()
                .filter(|word| wanted(word))
                .cloned()
                .collect()
        };
        let is_blow = |word: &str| Blow::ALL.iter().any(|blow| blow.name() == word);
        let is_size = |word: &str| SIZES.iter().any(|(name, _)| *name == word);
        let is_row = |word: &str| word == ROW;
        let (sizes, blows) = (words(&is_size), words(&is_blow));
        let modes = words(&|word| !is_blow(word) && !is_size(word) && !is_row(word));
        let row = !words(&is_row).is_empty();
        let cells = named(&cells, Cell::name, &modes)?;
        let is_rowed = |cell: &&Cell| {
            let is_simplest = cell.mode == Mode::BothNat && cell.family == Family::V4;
            if row {
                !modes.is_empty() || is_simplest
            } else {
                run.wanted.only.is_empty() && is_simplest
            }
        };
        Ok(Self {
            rows: cells.iter().filter(is_rowed).copied().collect(),
            blows: if row && blows.is_empty() {
                Vec::new()
            } else {
                named(&Blow::ALL, Blow::name, &blows)?
            },
            cells,
            everything: sizes.is_empty(),
            sizes: named(&SIZES, |(name, _)| name, &sizes)?
                .into_iter()
                .map(|(_, size)| size)
                .collect(),
        })
    }

    fn sizes(&self, cell: Cell) -> Vec<usize> {
        let is_wanted =
            |size: &&usize| !self.everything || **size == SIZES[0].1 || cell.mode == Mode::BothNat;
        self.sizes.iter().filter(is_wanted).copied().collect()
    }

    /// What is done to one pair.
    fn tasks(&self, product: Product, cell: Cell, size: usize) -> Vec<Task> {
        let is_rowed = product == Product::Onearm
            && self.rows.contains(&cell)
            && (!self.everything || size == SIZES[0].1);
        let blows = self.blows.iter().copied().map(Task::Blow);
        blows.chain(is_rowed.then_some(Task::Row)).collect()
    }
}

/// Something that a set of connections has to live through.
#[derive(Clone, Copy, Debug)]
enum Task {
    /// A blow, its end, the failback and the blow again.
    Blow(Blow),
    /// Many blows in a row.
    Row,
}

impl Task {
    fn name(self) -> &'static str {
        match self {
            Self::Blow(blow) => blow.name(),
            Self::Row => ROW,
        }
    }
}

fn run(run: &mut Run) -> Result<()> {
    let begun = clock::now();
    let wanted = Named::of(run)?;
    let products = named(&Product::ALL, Product::name, &run.wanted.peers)?;
    let mut stages = Vec::new();
    for cell in &wanted.cells {
        for product in products.iter().filter(|product| product.knows(*cell)) {
            for size in wanted.sizes(*cell) {
                let part = format!("{}_{}_{size}", product.name(), cell.name());
                let tasks = wanted.tasks(*product, *cell, size);
                if !tasks.is_empty()
                    && let Err(error) = one(run, *product, *cell, size, &tasks, &mut stages)
                {
                    run.report.check(
                        format!("{part}: lived through everything"),
                        false,
                        format!("{error:#}"),
                    );
                }
            }
        }
    }
    run.report.check(
        "connections were held over everything that was asked for",
        !stages.is_empty(),
        format!("{} spans", stages.len()),
    );
    table::print(&run.report, &stages);
    for stage in &stages {
        table::record(&mut run.report, stage);
    }
    let interval = interval(run);
    for stage in &stages {
        table::judge(&mut run.report, stage, interval);
    }
    let took = clock::ms(clock::now() - begun) / 1_000.0;
    run.report.figure("took_s", took);
    Ok(())
}

fn interval(run: &Run) -> Duration {
    run.wanted.interval.unwrap_or(Duration::from_millis(10))
}

/// All that is done to one pair of one product.
fn one(
    run: &mut Run,
    product: Product,
    cell: Cell,
    size: usize,
    tasks: &[Task],
    stages: &mut Vec<Stage>,
) -> Result<()> {
    let part = format!("{}_{}_{size}", product.name(), cell.name());
    let options = Options {
        forwarding: product.needs_forwarding(),
        ipv6: cell.family == Family::V6,
        peer_link: true,
        ..Options::default()
    };
    run.with_lab(&part, options, |run, lab| {
        let _web = traffic::start_servers(lab, &SERVERS)?;
        modes::prepare_hosts(lab, cell.mode)?;
        let _tunnel_ends = if cell.mode == Mode::L3Dsr {
            modes::end_tunnels(run, lab)?
        } else {
            Vec::new()
        };
        // Other addresses than those of the segment are answered from what they were asked at.
        let _echoes = SERVERS
            .iter()
            .zip(1..)
            .filter(|_| cell.mode.is_direct() || cell.family == Family::V6)
            .map(|(short, tag)| {
                Echo::bound(
                    lab.ns(short),
                    (cell.server_address(short), echo::PORT).into(),
                    tag,
                )
            })
            .collect::<Result<Vec<_>>>()?;
        let servers = SERVERS
            .iter()
            .zip(1..)
            .map(|(short, tag)| Server::start(lab.ns(short), tag, cell.server_address(short)))
            .collect::<Result<Vec<_>>>()?;
        let sources = many::sources(lab, cell.family, size)?;
        let spec = product.spec(cell, interval(run));
        let (mut living, mut nth): (Option<Pair>, u16) = (None, 0);
        for task in tasks {
            for attempt in 1.. {
                let mut pair = match living.take() {
                    Some(pair) => pair,
                    None => fresh(run, lab, product, cell, &spec)?,
                };
                // A peer that healed may have told nobody that it owns again.
                lab.forget_neighbours()?;
                nth += 1;
                let many = Many::open(run, lab, cell, &sources, size, nth).with_context(|| part.clone())?;
                let made = match *task {
                    Task::Blow(blow) => blow::deal(run, lab, &mut pair, (product, cell), blow, many),
                    Task::Row => row::deal(run, lab, &mut pair, (product, cell), sources[0], many),
                };
                match made {
                    Ok(made) => {
                        for stage in &made {
                            run.report.note(table::line(stage));
                        }
                        stages.extend(made);
                        living = Some(pair);
                        break;
                    }
                    Err(error) => {
                        pair.scrap()?;
                        let name = format!("{part}, {}: the pair lived through it", task.name());
                        let why = format!("{error:#}");
                        if attempt == ATTEMPTS {
                            product.demand(&mut run.report, name, false, why);
                            break;
                        }
                        run.report.note(format!("not so and done again: {name}: {why}"));
                    }
                }
            }
        }
        for (short, server) in SERVERS.iter().zip(servers) {
            let served = server.finish()?;
            product.demand(
                &mut run.report,
                format!("{part}: {short} heard nothing that belongs to somebody else"),
                served.foreign.is_empty(),
                format!("{} answers; {:?}", served.answers, served.foreign),
            );
        }
        living.as_mut().map_or(Ok(()), Pair::scrap)
    })
}

fn fresh(run: &Run, lab: &OneArm, product: Product, cell: Cell, spec: &PairSpec) -> Result<Pair> {
    let mut pair = Pair::prepare(product.kind(), lab, spec, &run.wanted.bin_dir)?;
    pair.start()?;
    lab.forget_neighbours()?;
    failover::wait_served(lab, (cell.vip(), echo::PORT))?;
    Ok(pair)
}
