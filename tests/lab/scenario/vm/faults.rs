//! What only a hypervisor can do to a node: stop it in time, put it back to an earlier state, run it twice.
//!
//! lb1 is a VM, lb2 a namespace of this machine. Both start with lb1 as the owner each time.

use std::{net::SocketAddrV4, path::Path, time::Duration};

use anyhow::Result;
use serde_json::Value;

use super::{Run, agent, wait_for};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{echo, owners::Sampler, udp::UdpProber},
    node::{
        Node as _, Role,
        onearm::{OnearmNode, node_toml, pair_toml},
    },
    scenario::failover,
    service::{Mode, PairSpec},
    topology::{self, OneArm, Options, ROUTER, SERVERS, VIP, mac},
    traffic,
    vm::{Image, Leg, Spec, Vm},
};

/// A command in the emulated machine, or a change of role, ends within this.
const LIMIT: Duration = Duration::from_mins(1);
/// How long two may own when one of them did not live while it owned.
const TWO_OWNERS: usize = 100;
/// What an emulated machine may need beyond the silence bound until it serves.
const ALLOWANCE: Nanos = 500 * MS;
/// What a node that stood still answers later than this is no service.
const LATE: Nanos = 200 * MS;
/// How long the instruments go on after a fault.
const AFTER: Duration = Duration::from_secs(3);
/// Where the node's files are inside.
const FOLDER: &str = "/root/node";

pub(super) fn run(run: &mut Run) -> Result<()> {
    let interval = run.wanted.interval.unwrap_or(Duration::from_millis(100));
    let spec = PairSpec {
        witness: Some(ROUTER),
        ..PairSpec::web_and_echo(Mode::Dnat, interval)
    };
    run.with_lab("faults", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        lab.remove_leg("lb1")?;
        let agent = agent(run);
        let image = Image::get(false)?;
        let mut story = Story::begin(run, lab, &spec, &agent, &image)?;
        for pause in [1, 10, 60] {
            story.paused(run, Duration::from_secs(pause))?;
        }
        story.put_back(run)?;
        story.copied(run, &agent, &image)?;
        story.twin(run, &agent, &image)?;
        story.vm.power_off()
    })
}

/// The pair.
struct Story<'a> {
    lab: &'a OneArm,
    spec: &'a PairSpec,
    vm: Vm,
    other: OnearmNode,
}

/// What was seen from outside.
#[derive(Debug)]
struct Seen {
    /// Longest time without an answer to the client.
    outage: Nanos,
    /// Milliseconds in which two answered for the VIP.
    two_owners: usize,
}

impl<'a> Story<'a> {
    fn begin(
        run: &mut Run,
        lab: &'a OneArm,
        spec: &'a PairSpec,
        agent: &Path,
        image: &Image,
    ) -> Result<Self> {
        let mut other = OnearmNode::prepare(lab, 1, spec, &run.wanted.bin_dir)?;
        let mut vm = Vm::boot(lab.lab(), image, &vm_spec(run, lab, agent, "lb1", mac("lb1")))?;
        furnish(&mut vm, spec, &other.key_file())?;
        start(&mut vm)?;
        wait_state(&mut vm, "active")?;
        other.start()?;
        wait_role(&mut other, Role::Standby)?;
        lab.forget_neighbours()?;
        failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT))?;
        Ok(Self { lab, spec, vm, other })
    }

    /// lb1 owns, lb2 is Standby, the client is served.
    fn settle(&mut self) -> Result<()> {
        if self.other.role()? == Role::Active {
            self.other.ask_to_stop();
            self.other.reap(LIMIT)?;
            wait_state(&mut self.vm, "active")?;
            self.other.start()?;
        }
        wait_state(&mut self.vm, "active")?;
        wait_role(&mut self.other, Role::Standby)?;
        self.other.wait_checked(LIMIT)?;
        failover::wait_served(self.lab, SocketAddrV4::new(VIP, echo::PORT))
    }

    /// What the client and the switch see while `work` goes on, and for some time after it.
    fn watch<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<(T, Seen)> {
        let owners = Sampler::start(self.lab, VIP, MS)?;
        let client = UdpProber::start(self.lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), MS)?;
        let begun = clock::now();
        clock::observe(Duration::from_millis(300));
        let done = work(self)?;
        clock::observe(AFTER);
        let end = clock::now();
        let (mut series, owners) = (client.stop()?, owners.stop()?);
        for attempt in &mut series.attempts {
            attempt.took = attempt.took.filter(|took| *took < LATE);
        }
        let seen = Seen {
            outage: series.longest_gap(begun, end),
            two_owners: owners.shared(begun, end),
        };
        Ok((done, seen))
    }

    fn silence(&self) -> Nanos {
        self.spec.active_down(1)
    }

    /// The owner's processors stop for `time`.
    fn paused(&mut self, run: &mut Run, time: Duration) -> Result<()> {
        self.settle()?;
        let ((), seen) = self.watch(|story| {
            story.vm.pause()?;
            clock::observe(time);
            story.vm.resume()
        })?;
        let bound = self.silence() + ALLOWANCE;
        judge(
            run,
            &format!("the owner paused for {} s", time.as_secs()),
            &seen,
            Some(bound),
        );
        wait_role(&mut self.other, Role::Active)?;
        wait_state(&mut self.vm, "standby")
    }

    /// It returns to a state in which it owned, while the other one owns and while it owns itself, and to one in which it
    /// did not own while it does.
    fn put_back(&mut self, run: &mut Run) -> Result<()> {
        self.settle()?;
        self.vm.save("owner")?;
        // Saving takes longer than the other one waits, or not.
        self.vm.pause()?;
        wait_role(&mut self.other, Role::Active)?;
        self.vm.resume()?;
        wait_state(&mut self.vm, "standby")?;
        self.vm.save("standby")?;
        let ((), seen) = self.watch(|story| story.vm.load("owner"))?;
        judge(
            run,
            "put back to when it owned, beside an owner",
            &seen,
            Some(100 * MS),
        );
        wait_role(&mut self.other, Role::Active)?;
        wait_state(&mut self.vm, "standby")?;
        for (snapshot, what) in [
            ("owner", "an owner put back to when it owned"),
            ("standby", "an owner put back to when it did not"),
        ] {
            self.settle()?;
            let ((), seen) = self.watch(|story| story.vm.load(snapshot))?;
            // Loading takes as long as it takes; the other one may have taken over meanwhile.
            judge(run, what, &seen, Some(self.silence() + ALLOWANCE));
            self.one_owner(run, what);
        }
        Ok(())
    }

    /// Its files on another machine, with another MAC: started beside it.
    fn copied(&mut self, run: &mut Run, agent: &Path, image: &Image) -> Result<()> {
        self.settle()?;
        let mut other_mac = mac("lb1");
        other_mac[5] ^= 0x40;
        let key = self.other.key_file();
        let mut copy = Vm::boot(
            self.lab.lab(),
            image,
            &vm_spec(run, self.lab, agent, "lb1c", other_mac),
        )?;
        furnish(&mut copy, self.spec, &key)?;
        let ((), seen) = self.watch(|story| {
            start(&mut copy)?;
            story.clone_is_told()
        })?;
        let what = "a copy of the owner started beside it";
        judge(run, what, &seen, Some(self.silence() + ALLOWANCE));
        self.told(run, what)?;
        copy.power_off()?;
        self.alone_again(run, what)
    }

    /// Its memory on another machine, MAC and all.
    fn twin(&mut self, run: &mut Run, agent: &Path, image: &Image) -> Result<()> {
        self.settle()?;
        let spec = vm_spec(run, self.lab, agent, "lb1t", mac("lb1"));
        let (twin, seen) = self.watch(|story| {
            story.vm.pause()?;
            story.vm.save("twin")?;
            let twin = story.vm.start_twin(story.lab.lab(), image, &spec, "twin")?;
            story.vm.resume()?;
            story.clone_is_told()?;
            Ok(twin)
        })?;
        let what = "the owner running twice";
        judge(run, what, &seen, None);
        self.told(run, what)?;
        twin.power_off()?;
        self.alone_again(run, what)
    }

    /// Waits until lb2 owns and knows why.
    fn clone_is_told(&mut self) -> Result<()> {
        clock::wait_for(
            "lb2 to tell of a clone",
            LIMIT,
            Duration::from_millis(100),
            || Ok(tells_of_a_clone(&self.other.ask(&["events"])?).then_some(())),
        )?;
        wait_role(&mut self.other, Role::Active)
    }

    fn told(&mut self, run: &mut Run, what: &str) -> Result<()> {
        let owner = self.other.role()?;
        run.report.check(
            format!("{what}: the other node owns and tells of a clone"),
            owner == Role::Active && tells_of_a_clone(&self.other.ask(&["events"])?),
            format!("{owner:?}"),
        );
        Ok(())
    }

    fn alone_again(&mut self, run: &mut Run, what: &str) -> Result<()> {
        wait_state(&mut self.vm, "standby")?;
        self.settle()?;
        self.one_owner(run, &format!("{what}, and ended"));
        Ok(())
    }

    fn one_owner(&mut self, run: &mut Run, what: &str) {
        let found = clock::wait_for("one owner", LIMIT, Duration::from_millis(200), || {
            let (own, other) = (state(&mut self.vm)?, self.other.role()?);
            Ok(matches!(
                (own.as_str(), other),
                ("active", Role::Standby) | ("standby", Role::Active)
            )
            .then(|| format!("lb1 {own}, lb2 {other:?}")))
        });
        run.report.check(
            format!("{what}: one owner at the end"),
            found.is_ok(),
            found.unwrap_or_else(|error| format!("{error:#}")),
        );
    }
}

fn judge(run: &mut Run, what: &str, seen: &Seen, outage: Option<Nanos>) {
    let name = what.replace([' ', ',', ':'], "_").to_lowercase();
    run.report.figure(format!("outage_ms_{name}"), ms(seen.outage));
    run.report.count(format!("two_owners_ms_{name}"), seen.two_owners);
    run.report.check(
        format!("{what}: two owners for {TWO_OWNERS} ms at most"),
        seen.two_owners <= TWO_OWNERS,
        format!("{} ms", seen.two_owners),
    );
    if let Some(bound) = outage {
        run.report.check(
            format!("{what}: service is back within {} ms", ms(bound)),
            seen.outage <= bound,
            format!("{} ms", ms(seen.outage)),
        );
    }
}

fn tells_of_a_clone(events: &Value) -> bool {
    events.to_string().contains("clone")
}

fn vm_spec<'a>(run: &Run, lab: &'a OneArm, agent: &'a Path, name: &'a str, mac: [u8; 6]) -> Spec<'a> {
    let mut spec = Spec::new(name, agent);
    spec.legs.push(Leg {
        switch: lab.switch(),
        port: name.to_owned(),
        mac,
    });
    for program in ["onearmd", "onearm"] {
        spec.files
            .push((run.wanted.bin_dir.join(program), program.to_owned()));
    }
    spec
}

/// Addresses and files of lb1.
fn furnish(vm: &mut Vm, spec: &PairSpec, key: &Path) -> Result<()> {
    vm.run("ip link set eth0 up")?;
    vm.run(&format!("ip addr add {}/24 dev eth0", topology::address("lb1")))?;
    vm.run(&format!("ip route add default via {ROUTER}"))?;
    vm.run(&format!("mkdir -p {FOLDER}/state {FOLDER}/run"))?;
    let inside = format!("{FOLDER}/pair.key");
    vm.channel().copy_in(key, &inside, "600", LIMIT)?;
    vm.write(
        &format!("{FOLDER}/node.toml"),
        &node_toml(0, spec, Some(Path::new(&inside))),
    )?;
    vm.write(&format!("{FOLDER}/pair.toml"), &pair_toml(spec))
}

fn start(vm: &mut Vm) -> Result<()> {
    let line = format!(
        "cd {FOLDER} && (setsid /lab/onearmd --node node.toml --pair pair.toml --state-dir state --run-dir run >log 2>&1 </dev/null &)"
    );
    vm.script(&line, LIMIT)?.good("start the daemon").map(drop)
}

fn state(vm: &mut Vm) -> Result<String> {
    let said = vm
        .script(
            &format!("/lab/onearm status --json --run-dir {FOLDER}/run"),
            LIMIT,
        )?
        .stdout;
    let status: Value = serde_json::from_str(&said).unwrap_or_default();
    Ok(status["state"].as_str().unwrap_or("none").to_owned())
}

fn wait_state(vm: &mut Vm, wanted: &str) -> Result<()> {
    wait_for(
        vm,
        &format!("the VM to be {wanted}"),
        &format!(
            "/lab/onearm status --json --run-dir {FOLDER}/run | grep -Eq '\"state\": ?\"{wanted}\"' || {{ cat {FOLDER}/log; exit 1; }}"
        ),
        LIMIT,
    )
}

fn wait_role(node: &mut OnearmNode, wanted: Role) -> Result<()> {
    clock::wait_for(
        &format!("lb2 to be {wanted:?}"),
        LIMIT,
        Duration::from_millis(50),
        || Ok((node.role()? == wanted).then_some(())),
    )
}
