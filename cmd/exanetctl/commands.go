package main

import "github.com/spf13/cobra"

// commands lists all commands in the order of the help text.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.statusCommand(),
		a.doctorCommand(),
		a.nodeCommand(),
		a.domainCommand(),
		a.channelCommand(),
		a.transactionCommand(),
		a.smmuCommand(),
		a.fifoCommand(),
		a.counterCommand(),
		a.faultCommand(),
		a.topCommand(),
		a.uiCommand(),
		a.traceCommand(),
		a.captureCommand(),
		a.writeCommand(),
		a.readCommand(),
		a.perfCommand(),
		a.emuCommand(),
		a.qemuCommand(),
		a.bindCommand(),
		a.unbindCommand(),
		a.replayCommand(),
		a.versionCommand(),
		a.processCommand(),
		a.demoCommand(),
		a.benchCommand(),
		a.studyCommand(),
		a.echoCommand(),
		a.guestCommand(),
	}
}
