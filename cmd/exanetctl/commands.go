package main

import "github.com/spf13/cobra"

// addCommands adds all commands in the groups and the order of the help text.
func (a *app) addCommands(root *cobra.Command) {
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"look", "Observe a running pfd:", []*cobra.Command{
			a.statusCommand(), a.topCommand(), a.uiCommand(),
			a.nodeCommand(), a.domainCommand(), a.channelCommand(), a.transactionCommand(), a.faultCommand(),
			a.fifoCommand(), a.smmuCommand(), a.counterCommand(), a.traceCommand(), a.captureCommand(),
		}},
		{"transfer", "Make transfers and measure them:", []*cobra.Command{
			a.transferCommand(false), a.transferCommand(true), a.perfCommand(), a.demoCommand(), a.benchCommand(), a.studyCommand(),
		}},
		{"machine", "Set up a machine, real or virtual:", []*cobra.Command{
			a.doctorCommand(), a.bindCommand(), a.unbindCommand(), a.emuCommand(), a.qemuCommand(),
		}},
		{"", "", []*cobra.Command{
			a.replayCommand(), a.versionCommand(),
			a.processCommand(), a.echoCommand(), a.guestCommand(), // hidden
		}},
	} {
		if g.id != "" {
			root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		}
		for _, c := range g.commands {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
}
