//! Reads the traces: one line a call, with its time of day and its tokens. It keeps no text, and there is none in them.

use std::{fs, path::Path, time::Duration};

/// Which of the two services a call was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    /// Conversations: somebody waits.
    Conversation,
    /// Code: played as a batch, nobody waits.
    Code,
}

/// One call of the traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Since the first call of both.
    pub(crate) at: Duration,
    pub(crate) service: Service,
    pub(crate) prompt_tokens: u64,
    pub(crate) output_tokens: u64,
}

/// A line that is not as the traces' are.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadTrace {
    #[error("{0}: {1}")]
    File(String, std::io::Error),
    #[error("{file}:{line}: {text:?} is not `date time,prompt tokens,output tokens`")]
    Line { file: String, line: usize, text: String },
}

/// Both traces of a folder, in the order of their times, which begin at zero.
pub(crate) fn read(folder: &Path) -> Result<Vec<Arrival>, BadTrace> {
    let mut arrivals = Vec::new();
    for (name, service) in [("conv.csv", Service::Conversation), ("code.csv", Service::Code)] {
        let path = folder.join(name);
        let file = path.display().to_string();
        let text = fs::read_to_string(&path).map_err(|error| BadTrace::File(file.clone(), error))?;
        for (place, text) in text.lines().enumerate().skip(1) {
            let arrival = arrival(text, service);
            let bad = || BadTrace::Line { file: file.clone(), line: place + 1, text: text.to_owned() };
            arrivals.push(arrival.ok_or_else(bad)?);
        }
    }
    arrivals.sort_by_key(|arrival| arrival.at);
    let first = arrivals.first().map_or(Duration::ZERO, |arrival| arrival.at);
    for arrival in &mut arrivals {
        arrival.at -= first;
    }
    Ok(arrivals)
}

fn arrival(line: &str, service: Service) -> Option<Arrival> {
    let (moment, tokens) = line.split_once(',')?;
    let (prompt, output) = tokens.split_once(',')?;
    let (_, time) = moment.split_once(' ')?;
    let mut parts = time.splitn(3, ':');
    let (hours, minutes) = (parts.next()?.parse::<u64>().ok()?, parts.next()?.parse::<u64>().ok()?);
    let seconds = Duration::try_from_secs_f64(parts.next()?.parse().ok()?).ok()?;
    Some(Arrival {
        at: Duration::from_secs(hours * 3_600 + minutes * 60) + seconds,
        service,
        prompt_tokens: prompt.parse().ok()?,
        output_tokens: output.trim_end().parse().ok()?,
    })
}
