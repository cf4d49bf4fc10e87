"""From outcomes to documents, and from documents to tables and figures."""
