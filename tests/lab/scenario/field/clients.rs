//! Who may be a client of the VIP.

use anyhow::{Context as _, Result};

use crate::{
    clock::{self, ms},
    scenario::{Run, stage},
    service::{Mode, PairSpec},
    topology::{Options, SERVERS, VIP},
    traffic,
};

pub(super) fn nodes_as_client(run: &mut Run) -> Result<()> {
    for mode in [Mode::BothNat, Mode::Dnat] {
        let word = mode.word();
        let spec = PairSpec::web_and_echo(mode, run.interval());
        run.with_lab(word, Options::default(), |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            let mut pair = stage(run, lab, &spec)?;
            let answers = traffic::curl(lab, "lb2", &VIP.to_string(), 50, "standby")?;
            run.report.check(
                format!("{word}: the Standby is served over the leg"),
                answers.good() == 50,
                format!("{} of 50 {}", answers.good(), answers.complaint),
            );
            let begun = clock::now();
            let output = lab.ns("lb1").output(&[
                "curl",
                "-s",
                "-S",
                "--max-time",
                "5",
                &format!("http://{VIP}/who"),
            ])?;
            let took = ms(clock::now() - begun);
            let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            run.report.check(
                format!("{word}: the Active is served or refused at once"),
                output.status.code() != Some(28) && took < 500.0,
                format!("{took} ms {complaint}"),
            );
            let standby = pair.nodes[1].as_onearm().context("only onearm has a probe")?;
            let probe = standby.ask(&["probe", &format!("{VIP}:80")])?;
            run.report.check(
                format!("{word}: `onearm probe` connects from the Standby"),
                probe.get("connected").and_then(serde_json::Value::as_bool) == Some(true),
                probe.to_string(),
            );
            // The Active cannot be its own client: it has the Standby make the probe.
            let active = pair.nodes[0].as_onearm().context("only onearm has a probe")?;
            let probe = active.ask(&["probe", &format!("{VIP}:80")])?;
            run.report.check(
                format!("{word}: `onearm probe` on the Active answers through the Standby"),
                probe["connected"] == true && probe["client_node"] == "lb2",
                probe.to_string(),
            );
            pair.scrap()
        })?;
    }
    Ok(())
}
