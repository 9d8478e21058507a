//! The journal of a service as its configuration says: its file, or a folder of its own that goes with the process.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::exit::Stop;
use crate::{
    journal::settings::{JournalSettings as Opened, Retention, Survives},
    serve::access::random::{hex, random_bytes},
    settings::journal::{JournalMode, JournalSettings, JournalSurvives},
};

/// Where a journal that is not kept lies, if the machine has it: in memory.
const SHARED_MEMORY: &str = "/dev/shm";
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Where a journal is; what is not to be kept goes with this value.
pub(super) struct JournalPlace {
    pub(super) opened: Opened,
    passing: Option<PathBuf>,
}

impl JournalPlace {
    /// The place that the settings of the project in `folder` name.
    pub(super) fn of(settings: &JournalSettings, folder: &Path) -> Result<Self, Stop> {
        let (path, passing) = match settings.mode {
            JournalMode::File => (folder.join(&settings.path), None),
            JournalMode::Memory => {
                let passing = passing_folder()?;
                (passing.join("journal.db"), Some(passing))
            }
        };
        let days = |days: Option<u64>| days.map(|days| DAY * u32::try_from(days).unwrap_or(u32::MAX));
        let usual = Opened::at(path);
        let opened = Opened {
            survives: match settings.survives {
                JournalSurvives::Process => Survives::Process,
                JournalSurvives::Power => Survives::Power,
            },
            size_max: settings.size_max,
            retention: Retention {
                completed: days(settings.completed_days),
                failed: days(settings.failed_days),
                cancelled: days(settings.cancelled_days),
                usage: days(settings.usage_days),
                dead_letters: days(settings.dead_letter_days),
                unused_files: settings.unused_file_hours.map(|hours| Duration::from_secs(hours * 3_600)),
                size_budget: settings.size_budget,
            },
            idempotency_keep: settings.idempotency_keep,
            readers: settings.readers as usize,
            now_ms: Arc::clone(&usual.now_ms),
            ..usual
        };
        Ok(Self { opened, passing })
    }

    /// For a person.
    pub(super) fn shown(&self) -> String {
        match &self.passing {
            Some(_) => "in memory: nothing is kept over a restart".to_owned(),
            None => self.opened.path.display().to_string(),
        }
    }
}

impl Drop for JournalPlace {
    fn drop(&mut self) {
        if let Some(folder) = &self.passing
            && let Err(error) = std::fs::remove_dir_all(folder)
        {
            tracing::warn!(folder = %folder.display(), %error, "a folder is left behind");
        }
    }
}

fn passing_folder() -> Result<PathBuf, Stop> {
    let random: [u8; 8] = random_bytes().map_err(Stop::usage)?;
    let name = format!("watertight-{}", hex(&random));
    let parents = [PathBuf::from(SHARED_MEMORY), std::env::temp_dir()];
    let parent = parents.iter().find(|parent| parent.is_dir()).ok_or_else(|| Stop::usage("no place in memory"))?;
    let folder = parent.join(name);
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(&folder).map_err(|error| Stop::Usage(format!("{}: {error}", folder.display())))?;
    Ok(folder)
}
