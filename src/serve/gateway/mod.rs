//! The gateway: OpenAI's own shapes in front of agents, and existing services behind their agents' guards.
//!
//! Reading order: which model is which agent (`models`), what a request says (`asked`), errors in OpenAI's words (`shape`), the
//! answer as it goes out (`answer`), the routes (`relay_routes`), services as they are (`pass`, `passing`, `pass_tokens`, `pass_description`), and all of it in one router (`door`).

pub mod door;
pub mod models;

mod answer;
mod asked;
mod pass;
mod pass_description;
mod pass_tokens;
mod passing;
mod relay_routes;
mod shape;
#[cfg(test)]
mod tests;
