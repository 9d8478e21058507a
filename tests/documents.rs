//! Documents are true or gone: pages, tables and commands in them are compared with the code.
